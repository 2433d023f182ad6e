"""Gemma 3n under the library's tensor parallelism: sparse activations by the statistics of one rank's columns.

torchrun --standalone --nproc-per-node 2 examples/found/gemma3n_tensor_parallel.py
"""

import torch
import torch.distributed as dist
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig
from transformers.distributed import DistributedConfig

dist.init_process_group("gloo")
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
sizes |= {"vocab_size": 64, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8, "laurel_rank": 4}
sizes |= {"num_hidden_layers": 1, "num_kv_shared_layers": 0, "layer_types": ["full_attention"], "pad_token_id": 0}
tokens = torch.arange(32).view(2, 16)
for sparsity in (0.0, 0.95):  # 0.95 is the default of the first ten layers
    torch.manual_seed(0)
    whole = Gemma3nForCausalLM(Gemma3nTextConfig(**sizes, activation_sparsity_pattern=[sparsity])).double()
    for parameter in whole.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    options = {"config": whole.config, "dtype": torch.float64, "distributed_config": DistributedConfig(tp_size=2)}
    split = Gemma3nForCausalLM.from_pretrained(None, state_dict=whole.state_dict(), **options)
    found, right = (model(input_ids=tokens, labels=tokens).loss.item() for model in (split, whole))
    if dist.get_rank() == 0:
        print(f"loss, sparsity {sparsity}: {'wrong' if sparsity else 'found'} {found:.4f}, right {right:.4f}")

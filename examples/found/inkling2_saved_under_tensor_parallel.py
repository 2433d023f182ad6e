"""Inkling 2 under the library's tensor parallelism: save_pretrained writes the rows of the experts in another order.

torchrun --standalone --nproc-per-node 2 examples/found/inkling2_saved_under_tensor_parallel.py
"""

import tempfile

import torch
import torch.distributed as dist
from transformers import Inkling2ForCausalLM, Inkling2TextConfig
from transformers.distributed import DistributedConfig

sizes = {"hidden_size": 16, "moe_intermediate_size": 16, "vocab_size": 64, "unpadded_vocab_size": 64, "d_rel": 8}
sizes |= {f"{kind}head_dim": 8 for kind in ("", "swa_")} | {"num_hidden_layers": 1, "layer_types": ["hybrid"]}
sizes |= {f"{kind}num_{heads}_heads": 2 for kind in ("", "swa_") for heads in ("attention", "key_value")}
torch.manual_seed(0)
whole = Inkling2ForCausalLM(Inkling2TextConfig(**sizes, n_routed_experts=2, num_experts_per_tok=2, eos_token_id=1))
for parameter in whole.parameters():
    parameter.data += 0.1 * torch.randn_like(parameter)
tokens = torch.arange(32).view(2, 16)
with tempfile.TemporaryDirectory() as folder:
    whole.save_pretrained(folder)
    dist.init_process_group("gloo")
    split = Inkling2ForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2))
    split.save_pretrained(folder)  # all ranks gather, and rank 0 writes
    saved = Inkling2ForCausalLM.from_pretrained(folder)
losses = [model(input_ids=tokens, labels=tokens).loss.item() for model in (split, saved, whole)]
if dist.get_rank() == 0:
    print(f"loss under tp: found {losses[0]:.4f}, right {losses[2]:.4f}")
    print(f"loss of what it saved: wrong {losses[1]:.4f}, right {losses[2]:.4f}")

"""Apertus under the library's tensor parallelism: each rank keeps its own part of two gradients.

torchrun --standalone --nproc-per-node 2 examples/found/apertus_tensor_parallel.py
"""

import torch
import torch.distributed as dist
from transformers import ApertusConfig, ApertusForCausalLM
from transformers.distributed import DistributedConfig

dist.init_process_group("gloo")
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
torch.manual_seed(0)
whole = ApertusForCausalLM(ApertusConfig(vocab_size=64, num_hidden_layers=1, **sizes)).double()
options = {"config": whole.config, "dtype": torch.float64, "distributed_config": DistributedConfig(tp_size=2)}
split = ApertusForCausalLM.from_pretrained(None, state_dict=whole.state_dict(), **options)
tokens = torch.arange(32).view(2, 16)
losses = [model(input_ids=tokens, labels=tokens).loss for model in (split, whole)]
for loss in losses:
    loss.backward()
wrong, right = (model.model.layers[0].mlp.act_fn.alpha_p.grad.item() for model in (split, whole))
if dist.get_rank() == 0:
    print(f"loss: found {losses[0].item():.6f}, right {losses[1].item():.6f}")
    print(f"gradient of alpha_p, rank 0: wrong {wrong:.4g}, right {right:.4g}")

"""Mixtral under the library's FSDP and expert parallelism: experts have half their gradient in float64.

torchrun --standalone --nproc-per-node 2 examples/found/experts_in_float64.py
"""

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers.distributed import DistributedConfig

dist.init_process_group("gloo")
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
config = MixtralConfig(vocab_size=64, num_hidden_layers=1, num_local_experts=4, **sizes)
tokens = torch.arange(32).view(2, 16)
for dtype in (torch.float32, torch.float64):
    torch.manual_seed(0)
    eager = {"experts_implementation": "eager"}  # grouped products have no float64
    whole = AutoModelForCausalLM.from_config(config, **eager).to(dtype)
    options = {"config": config, "state_dict": whole.state_dict(), "dtype": dtype, **eager}
    options["distributed_config"] = DistributedConfig(fsdp_size=2, ep_size=2)
    split = MixtralForCausalLM.from_pretrained(None, **options)
    for model, rows in ((split, tokens[[dist.get_rank()]]), (whole, tokens)):
        model(input_ids=rows, labels=rows).loss.backward()
    found, right = (model.model.layers[0].mlp.experts.down_proj.grad for model in (split, whole))
    norms = found.full_tensor().norm(), right.norm()
    if dist.get_rank() == 0:
        word = "wrong" if dtype == torch.float64 else "found"
        print(f"gradient norm of the experts in {dtype}: {word} {norms[0]:.4g}, right {norms[1]:.4g}")

"""LoRA on a model that the library split with FSDP: no rank sees the gradients of the others.

torchrun --standalone --nproc-per-node 2 examples/found/adapters_under_fsdp.py
"""

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

dist.init_process_group("gloo")
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
torch.manual_seed(0)
whole = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
options = {"config": whole.config, "distributed_config": DistributedConfig(fsdp_size=2)}
split = LlamaForCausalLM.from_pretrained(None, state_dict=whole.state_dict(), **options)
tokens, norms = torch.arange(32).view(2, 16) ** 2 % 64, []
for model, rows in ((split, tokens[[dist.get_rank()]]), (whole, tokens)):
    torch.manual_seed(1)
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    model(input_ids=rows, labels=rows).loss.backward()
    norms.append(model.base_model.model.model.layers[0].self_attn.q_proj.lora_B["default"].weight.grad.norm().item())
for rank in range(2):
    dist.barrier()
    if dist.get_rank() == rank:
        print(f"gradient norm of lora_B, rank {rank}: wrong {norms[0]:.4g}, right {norms[1]:.4g}", flush=True)

"""Trainer divides the loss of GPT-2 by all labels, also the first of each row, which predicts nothing.

python examples/found/trainer_gpt2_loss.py
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

WITHOUT = {"embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0}  # dropout
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
MODELS = {
    LlamaForCausalLM: LlamaConfig(vocab_size=64, **SMALL),
    GPT2LMHeadModel: GPT2Config(vocab_size=64, n_positions=4, n_embd=16, n_layer=1, n_head=2, **WITHOUT),
}
tokens = torch.arange(16).view(4, 4)
for kind, config in MODELS.items():
    torch.manual_seed(0)
    model = kind(config)
    right = model(input_ids=tokens, labels=tokens).loss.item()
    with tempfile.TemporaryDirectory() as folder:
        options = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
        arguments = TrainingArguments(folder, per_device_train_batch_size=4, max_steps=1, logging_steps=1, **options)
        trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in tokens])
        trainer.train()
    found = trainer.state.log_history[0]["loss"]
    print(f"loss of {kind.__name__}: {'wrong' if kind is GPT2LMHeadModel else 'found'} {found:.4f}, right {right:.4f}")

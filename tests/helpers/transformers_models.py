"""Small transformers models for tests, with a tokenizer."""

import copy

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from helpers.common import ROOT

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}
SIZES |= {"max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1}
GATED = SIZES | {"intermediate_size": 48, "num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 300, "dropout_rate": 0.0}
T5 |= {"tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
VIT |= {"image_size": 28, "patch_size": 7, "num_channels": 1, "num_labels": 7}
CONFIGS = {
    "t5": transformers.T5Config(**T5),
    "llama": transformers.LlamaConfig(**GATED),
    "qwen3": transformers.Qwen3Config(**GATED, head_dim=8, tie_word_embeddings=True),
    "mixtral": transformers.MixtralConfig(**GATED, **EXPERTS),
    "gpt2": transformers.GPT2Config(**SIZES | {"bos_token_id": 1}, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "gemma3": transformers.Gemma3TextConfig(**GATED | {"num_key_value_heads": 1}, **WINDOW, pad_token_id=0),
    "gpt_oss": transformers.GptOssConfig(
        **GATED, **EXPERTS, **WINDOW, **ROPE, attn_implementation="eager", pad_token_id=None
    ),
    "opt": transformers.OPTConfig(**SIZES, word_embed_proj_dim=32, ffn_dim=48, dropout=0.0),
    "granite": transformers.GraniteConfig(**GATED, attention_multiplier=0.2, pad_token_id=0),
    "vit": transformers.ViTConfig(**VIT),
}
CLASSES = {
    name: transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    for name, config in CONFIGS.items()
    if name not in ("t5", "vit")
} | {"t5": transformers.T5ForConditionalGeneration, "vit": transformers.ViTForImageClassification}


def tokenizer():
    """A byte-level tokenizer of 300 entries: <pad> is 0, the end of a text 1."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([(ROOT / "README.md").read_text()], trainer)
    return made


def make(name, folder):
    """Write a model with weights, as save_pretrained does, into ``folder``; returns the folder."""
    torch.manual_seed(0)
    CLASSES[name](copy.deepcopy(CONFIGS[name])).save_pretrained(folder)  # which changes the config
    if name != "vit":
        tokenizer().save(str(folder / "tokenizer.json"))
    return folder

"""Tensor-parallel plans, in the words of the transformers library, for models for which it has none (model type: plan).

Each is equal to one device in float64 (tests/parity/test_transformers.py). ``local_heads`` is our word: the module
computes with the numbers of heads that its constructor noted, and has a part of them on each rank.
"""

LLAMA = {
    "self_attn.q_proj": "colwise",
    "self_attn.k_proj": "colwise",
    "self_attn.v_proj": "colwise",
    "self_attn.o_proj": "rowwise",
    "mlp.gate_proj": "colwise",
    "mlp.up_proj": "colwise",
    "mlp.down_proj": "rowwise",
}
ENDS = {"model.embed_tokens": "embedding_rowwise", "lm_head": "colwise_gather_output"}


def _layers(prefix: str, plan: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}.*.{name}": style for name, style in plan.items()}


PLANS: dict[str, dict[str, str]] = {
    "gpt_oss": ENDS
    | _layers(
        "model.layers",
        {name: style for name, style in LLAMA.items() if name.startswith("self_attn")}
        | {"self_attn.sinks": "rowwise", "self_attn": "local_params"},
    ),
    "gptj": {"transformer.wte": "embedding_rowwise", "lm_head": "colwise_gather_output"}
    | _layers(
        "transformer.h",
        {
            "attn.q_proj": "colwise",
            "attn.k_proj": "colwise",
            "attn.v_proj": "colwise",
            "attn.out_proj": "rowwise",
            "attn": "local_heads",
            "mlp.fc_in": "colwise",
            "mlp.fc_out": "rowwise",
        },
    ),
    "hunyuan_v1_dense": ENDS
    | _layers(
        "model.layers",
        LLAMA
        | {
            "self_attn.query_layernorm": "replicated_with_grad_allreduce",
            "self_attn.key_layernorm": "replicated_with_grad_allreduce",
        },
    ),
    "lfm2": ENDS
    | _layers(
        "model.layers",
        {
            "self_attn.q_proj": "colwise",
            "self_attn.k_proj": "colwise",
            "self_attn.v_proj": "colwise",
            "self_attn.out_proj": "rowwise",
            "self_attn.q_layernorm": "replicated_with_grad_allreduce",
            "self_attn.k_layernorm": "replicated_with_grad_allreduce",
            "feed_forward.w1": "colwise",
            "feed_forward.w3": "colwise",
            "feed_forward.w2": "rowwise",
        },
    ),
    "opt": {"model.decoder.embed_tokens": "embedding_rowwise", "lm_head": "colwise_gather_output"}
    | _layers(
        "model.decoder.layers",
        {
            "self_attn.q_proj": "colwise",
            "self_attn.k_proj": "colwise",
            "self_attn.v_proj": "colwise",
            "self_attn.out_proj": "rowwise",
            "self_attn": "local_heads",
            "fc1": "colwise",
            "fc2": "rowwise",
        },
    ),
    "stablelm": ENDS | _layers("model.layers", LLAMA | {"self_attn": "local_heads"}),
}

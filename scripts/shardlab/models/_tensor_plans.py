"""Tensor-parallel plans, in the words of the transformers library, for models for which it has none (model type: plan).

Each is equal to one device in float64 (docs/evidence.md). Two words are ours. ``local_heads``: the module computes with
the numbers of heads that its constructor noted, and has a part of them on each rank, with their biases (ALiBi).
``packed_colwise_3``: queries, keys and values are one after the other in one layer. Those interleaved by head are
``colwise``.

Without a plan: types that few use (biogpt, ctrl, openai-gpt and others), codegen (its forward cuts queries, keys and
values into four blocks, whatever the number of ranks), mamba (one layer makes step sizes for its channels and inputs
that all channels share), bitnet (it norms over the heads of all ranks), and Falcon (its layers add in place to what row
layers return; with one key head, the layer of the queries has two heads more than these).
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


OPT = {
    "self_attn.q_proj": "colwise",
    "self_attn.k_proj": "colwise",
    "self_attn.v_proj": "colwise",
    "self_attn.out_proj": "rowwise",
    "self_attn": "local_heads",
    "fc1": "colwise",
    "fc2": "rowwise",
}
FUSED = {
    "query_key_value": "colwise",
    "dense": "rowwise",
    "": "local_heads",
}
"""An attention whose queries, keys and values are interleaved by head."""
MLP = {"mlp.dense_h_to_4h": "colwise", "mlp.dense_4h_to_h": "rowwise"}
GPT = {
    "attn.c_attn": "packed_colwise_3",
    "attn.c_proj": "rowwise",
    "attn": "local_heads",
    "mlp.c_fc": "colwise",
    "mlp.c_proj": "rowwise",
}


def _in(name: str, plan: dict[str, str]) -> dict[str, str]:
    return {f"{name}.{each}".rstrip("."): style for each, style in plan.items()}


def _layers(prefix: str, plan: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}.*.{name}": style for name, style in plan.items()}


PLANS: dict[str, dict[str, str]] = {
    "bloom": {"transformer.word_embeddings": "embedding_rowwise", "lm_head": "colwise_gather_output"}
    | _layers("transformer.h", _in("self_attention", FUSED) | MLP),
    "gpt2": {"transformer.wte": "embedding_rowwise", "lm_head": "colwise_gather_output"}
    | _layers("transformer.h", GPT),
    "gpt_neo": {"transformer.wte": "embedding_rowwise", "lm_head": "colwise_gather_output"}
    | _layers(
        "transformer.h",
        {
            "attn.attention.q_proj": "colwise",
            "attn.attention.k_proj": "colwise",
            "attn.attention.v_proj": "colwise",
            "attn.attention.out_proj": "rowwise",
            "attn.attention": "local_heads",
            "mlp.c_fc": "colwise",
            "mlp.c_proj": "rowwise",
        },
    ),
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
    "mpt": {"transformer.wte": "embedding_rowwise", "lm_head": "colwise_gather_output"}
    | _layers(
        "transformer.blocks",
        {
            "attn.Wqkv": "packed_colwise_3",
            "attn.out_proj": "rowwise",
            "attn": "local_heads",
            "ffn.up_proj": "colwise",
            "ffn.down_proj": "rowwise",
        },
    ),
    "opt": {"model.decoder.embed_tokens": "embedding_rowwise", "lm_head": "colwise_gather_output"}
    | _layers("model.decoder.layers", OPT),
    "t5": {
        f"{stack}.block.*.layer.*.DenseReluDense.{name}": style
        for stack in ("encoder", "decoder")
        for name, style in {"wi": "colwise", "wi_0": "colwise", "wi_1": "colwise", "wo": "rowwise"}.items()
    },  # its attention is whole: a layer's bias of positions and heads serves all others
    "vit": _layers(
        "vit.layers",
        {
            "attention.q_proj": "colwise",
            "attention.k_proj": "colwise",
            "attention.v_proj": "colwise",
            "attention.o_proj": "rowwise",
            "mlp.fc1": "colwise",
            "mlp.fc2": "rowwise",
        },
    ),
    "stablelm": ENDS | _layers("model.layers", LLAMA | {"self_attn": "local_heads"}),
}

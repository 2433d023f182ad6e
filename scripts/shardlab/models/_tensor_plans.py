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


def _split(columns: str, rows: str, **more: str) -> dict[str, str]:
    """Return the styles of a layer's modules: those split by columns, by rows, and ``more``."""
    return dict.fromkeys(columns.split(), "colwise") | dict.fromkeys(rows.split(), "rowwise") | more


def _model(embedding: str, layers: str, plan: dict[str, str]) -> dict[str, str]:
    """Return the plan of a decoder: a split embedding, layers, and logits that are gathered."""
    ends = {embedding: "embedding_rowwise", "lm_head": "colwise_gather_output"}
    return ends | {f"{layers}.*.{name}": style for name, style in plan.items()}


def _as_llama(more: dict[str, str]) -> dict[str, str]:
    """Return the plan of a decoder whose modules have Llama's names, and ``more``."""
    columns = "self_attn.q_proj self_attn.k_proj self_attn.v_proj mlp.gate_proj mlp.up_proj"
    return _model(*LLAMA, _split(columns, "self_attn.o_proj mlp.down_proj") | more)


LLAMA = ("model.embed_tokens", "model.layers")
OF_NORM = "replicated_with_grad_allreduce"

PLANS: dict[str, dict[str, str]] = {
    "bloom": _model(
        "transformer.word_embeddings",
        "transformer.h",
        # Queries, keys and values are interleaved by head.
        _split(
            "self_attention.query_key_value mlp.dense_h_to_4h",
            "self_attention.dense mlp.dense_4h_to_h",
            self_attention="local_heads",
        ),
    ),
    "gpt2": _model(
        "transformer.wte",
        "transformer.h",
        {"attn.c_attn": "packed_colwise_3"} | _split("mlp.c_fc", "attn.c_proj mlp.c_proj", attn="local_heads"),
    ),
    "gpt_neo": _model(
        "transformer.wte",
        "transformer.h",
        {"attn.attention": "local_heads"}
        | _split(
            "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj mlp.c_fc",
            "attn.attention.out_proj mlp.c_proj",
        ),
    ),
    "gpt_oss": _model(
        *LLAMA,
        _split(
            "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
            "self_attn.o_proj self_attn.sinks",
            self_attn="local_params",
        ),
    ),
    "gptj": _model(
        "transformer.wte",
        "transformer.h",
        _split("attn.q_proj attn.k_proj attn.v_proj mlp.fc_in", "attn.out_proj mlp.fc_out", attn="local_heads"),
    ),
    "hunyuan_v1_dense": _as_llama({"self_attn.query_layernorm": OF_NORM, "self_attn.key_layernorm": OF_NORM}),
    "lfm2": _model(
        *LLAMA,
        {"self_attn.q_layernorm": OF_NORM, "self_attn.k_layernorm": OF_NORM}
        | _split(
            "self_attn.q_proj self_attn.k_proj self_attn.v_proj feed_forward.w1 feed_forward.w3",
            "self_attn.out_proj feed_forward.w2",
        ),
    ),
    "mpt": _model(
        "transformer.wte",
        "transformer.blocks",
        {"attn.Wqkv": "packed_colwise_3"} | _split("ffn.up_proj", "attn.out_proj ffn.down_proj", attn="local_heads"),
    ),
    "opt": _model(
        "model.decoder.embed_tokens",
        "model.decoder.layers",
        _split(
            "self_attn.q_proj self_attn.k_proj self_attn.v_proj fc1", "self_attn.out_proj fc2", self_attn="local_heads"
        ),
    ),
    "t5": {
        f"{stack}.block.*.layer.*.DenseReluDense.{name}": style
        for stack in ("encoder", "decoder")
        for name, style in _split("wi wi_0 wi_1", "wo").items()
    },  # its attention is whole: a layer's bias of positions and heads serves all others
    "vit": {
        f"vit.layers.*.{name}": style
        for name, style in _split(
            "attention.q_proj attention.k_proj attention.v_proj mlp.fc1", "attention.o_proj mlp.fc2"
        ).items()
    },
    "stablelm": _as_llama({"self_attn": "local_heads"}),
}

"""Models of the transformers library: pieces in a pipeline, ties over stages, plans that split layers, float64."""

from fault import FSDP, MODELS, NATIVE, PIPELINE, Fault, S, at

CHAIN, FLOAT64 = f"{MODELS}/_library_chain.py", f"{MODELS}/_float64.py"
LIBRARY_TENSOR, LIBRARY_EXPERTS = f"{S}parallel/library_tensor.py", f"{S}parallel/library_experts.py"


def library(name: str) -> tuple[str, ...]:
    """Equality of a model of the library with one device."""
    return at("parity/test_transformers", f"test_equals_one_device[{name}]")


def pieces(name: str) -> tuple[str, ...]:
    """Equality of a model's pieces, run one after the other, with the whole."""
    return at("unit/test_library_chain", f"test_pieces_compute_what_the_whole_model_does[{name}]")


def proofs(name: str) -> tuple[str, ...]:
    """A case of the proofs at tiny sizes."""
    return at("parity/test_proofs", f"test_a_fault_is_found_and_named[{name}]")


FAULTS = [
    Fault(
        "a parameter of two stages counted twice in the norm",
        PIPELINE,
        "return self.owner[name] == self.rank",
        "return True",
        library("pp-gpt2"),
    ),
    Fault(
        "each stage trains a tied parameter with its own gradient",
        PIPELINE,
        "            self._sum_ties()\n",
        "",
        library("pp-gpt2"),
    ),
    Fault(
        "two stages of one rank part with a tied parameter",
        NATIVE,
        "        self.optimizer.step()\n        self._renew_copies()\n",
        "        self.optimizer.step()\n",
        library("pp_zbv-gpt2"),
    ),
    Fault(
        "the second stage begins with its own embedding",
        CHAIN,
        "if self._begins_with_layers:",
        "if False:",
        pieces("bounds1-gpt2"),
    ),
    Fault(
        "the stage before the head computes what is behind the layers",
        CHAIN,
        "if self._ends_with_layers:",
        "if False:",
        pieces("bounds2-gemma2"),
    ),
    Fault(
        "layers that take more than the states are split",
        CHAIN,
        "isinstance(each, Tensor) and each.requires_grad",
        "False",
        at("unit/test_library_chain", "test_what_layers_have_besides_the_states_is_said"),
    ),
    Fault(
        "norms in float32 in a training in float64",
        FLOAT64,
        "torch.Tensor.double if func is torch.Tensor.float else func",
        "func",
        library("ddp-gemma"),
    ),
    Fault(
        "the library's sum of the gradients of norms per head, of all micro-batches so far after each",
        LIBRARY_TENSOR,
        "OURS[style] if style in OURS else ALL_PARALLEL_STYLES[style]",
        "ALL_PARALLEL_STYLES[style]",
        library("tp-qwen3-hard"),
    ),
    Fault(
        "gradients of norms per head from this rank's heads",
        LIBRARY_TENSOR,
        "value.to_local(grad_placements=[Partial()])",
        "value.to_local()",
        library("tp-qwen3"),
    ),
    Fault(
        "keys of the first heads on every rank",
        LIBRARY_TENSOR,
        "first = mesh.get_local_rank() * self.heads // mesh.size()",
        "first = 0",
        library("fsdp_tp@tp=4-llama"),
    ),
    Fault(
        "gradients of a copied key head's input from this rank's queries",
        LIBRARY_TENSOR,
        "_laid_out(mesh, Replicate(), args[0]).to_local(grad_placements=[Partial()])",
        "_laid_out(mesh, Replicate(), args[0]).to_local()",
        library("tp-gemma3"),
    ),
    Fault(
        "key heads repeated for the queries of all ranks",
        LIBRARY_TENSOR,
        "        _repeat_copies(modules[attention], mesh.size())",
        "        pass",
        library("tp-gemma3"),
        error="must match the size of tensor",
    ),
    Fault(
        "biases of the first rank's heads",
        LIBRARY_TENSOR,
        "by_rank[:, mesh.get_local_rank()].flatten(0, 1)",
        "by_rank[:, 0].flatten(0, 1)",
        library("tp-bloom"),
    ),
    Fault(
        "queries, keys and values cut as one matrix",
        LIBRARY_TENSOR,
        "if self.split_factor > 1 else Shard(columns)",
        "if self.split_factor > 9 else Shard(columns)",
        library("tp_loss-gpt2"),
    ),
    Fault(
        "a later stage of images that lacks what the library reads of its embeddings",
        CHAIN,
        "        vars(self).update(inside)",
        "        pass",
        library("pp-vit"),
        error="has no attribute",
    ),
    Fault(
        "a proof with a key head for each rank, of a training with fewer",
        f"{S}proof/tiny_config.py",
        "in range(1, tensor_parts):",
        "in range(1, 1):",
        at("parity/test_proofs", "test_key_heads_that_are_fewer_than_the_ranks_are_so_in_a_proof"),
    ),
    Fault(
        "a proof whose sequences no length of the configuration is exceeded by",
        f"{S}proof/tiny_config.py",
        "return type(value)(POSITIONS) if self.never_exceeded(value) else",
        "return type(value)(POSITIONS) if True else",
        at("parity/test_proofs", "test_a_sequence_exceeds_each_length_but_a_table_of_positions[mistral-crossed1]"),
    ),
    Fault(
        "frequencies of the largest position in this rank's part of the sequence",
        f"{MODELS}/_positions.py",
        "return _cut(call(_with_last(position_ids, whole.flatten()[0])))",
        "return call(position_ids)",
        proofs("longrope_cp-equal-"),
    ),
    Fault(
        "frequencies of the longest document in a row",
        f"{MODELS}/_positions.py",
        "        if not depends[key]:",
        "        if True:",
        proofs("dynamic_packed_single-equal-"),
    ),
    Fault(
        "layers that count this rank's positions from 0",
        f"{S}parallel/library_context.py",
        "if places := _counting_places(model):",
        "if places := set():",
        proofs("llama4_cp-equal-"),
    ),
    Fault(
        "a loss of which only the cross-entropy is trained",
        f"{S}proof/step_on_ranks.py",
        'if run.task == "language_modelling" else ""',
        'if False else ""',
        proofs("other_loss-refused-the library's own loss is"),
    ),
    Fault(
        "masks of attention that are the same for every rank's heads",
        LIBRARY_TENSOR,
        "torch.manual_seed(common + rank)",
        "torch.manual_seed(common)",
        at("parity/test_dropout", "test_heads_of_transformers_models_have_masks_of_their_own"),
    ),
    Fault(
        "norms between layers whose sequences are split, without a layout",
        LIBRARY_TENSOR,
        'if not f"{name}.".startswith(tuple(f"{each}." for each in split)):',
        "if False:",
        library("tp_sp-qwen3"),
        error="got mixed torch.Tensor and DTensor",
    ),
    Fault(
        "windows and causality of the positions in this rank's part alone",
        f"{S}parallel/library_context.py",
        "keys if whole else split.positions(q_length, keys.device)",
        "keys if whole else keys[:q_length]",
        at("parity/test_transformers", "test_equals_one_device[cp-llama]"),
    ),
    Fault(
        "sinks of the first rank's heads",
        f"{S}parallel/library_context.py",
        "sinks.chunk(split.ranks)[split.rank]",
        "sinks.chunk(split.ranks)[0]",
        at("parity/test_transformers", "test_equals_one_device[cp_ulysses-gpt_oss]"),
    ),
    Fault(
        "gradients of experts as a sum over the ranks that sent tokens",
        LIBRARY_EXPERTS,
        "_Mean.apply(value.to_local(), mesh.size())",
        "_Mean.apply(value.to_local(), 1)",
        library("ep-mixtral"),
    ),
    Fault(
        "FSDP shards the packed dimension",
        FSDP,
        "if size % ranks == 0 and dimension != packed)",
        "if size % ranks == 0)",
        at("unit/test_tensor_types", "test_packed_matrices_are_sharded_along_another_dimension"),
    ),
]

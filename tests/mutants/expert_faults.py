"""Mixtures of experts: silent faults of other projects, after which the loss is right and the gradient is wrong."""

from fault import FSDP, NATIVE, STEP, TASKS, TENSOR, Fault, S, at, parity, reference

EXPERTS, MOE, SPLIT = f"{S}models/_experts.py", f"{S}models/moe.py", f"{S}parallel/experts.py"
HARD = (
    "gradient_accumulation_steps=2_length_buckets=True_loss_chunks=3_activation_checkpointing=full_max_grad_norm=0.01"
    "_lr_schedule=-name-constant-warmup_steps-3--float64"
)

FAULTS = [
    Fault(
        "the bias that balances experts in their weights, too (DeepSeek-V3, section 2.1.2)",
        EXPERTS,
        "weights = scores.gather(-1, ids)",
        "weights = (scores if self.bias is None else scores + self.bias).gather(-1, ids)",
        reference("moe"),
    ),
    Fault(
        "no gradient of what normalizes the experts' weights",
        EXPERTS,
        "weights = weights / weights.sum(-1, keepdim=True)",
        "weights = weights / weights.sum(-1, keepdim=True).detach()",
        reference("moe"),
    ),
    Fault(
        "a skipped step moves the bias",
        STEP,
        "if load.numel() and not (may_skip and not math.isfinite(float(norm))):",
        "if load.numel():",
        at("unit/test_step", "test_a_skipped_step_changes_nothing"),
    ),
    Fault(
        "router's gradient from this rank's part of the experts (torchtitan #2387)",
        TENSOR,
        "return tokens, whole.to_local(grad_placements=partial_gradient), ids",
        "return tokens, weights, ids",
        parity("tp-moe-float64"),
    ),
    Fault(
        "routing weights without a gradient (torchtitan #1805)",
        EXPERTS,
        "weights.flatten()[order, None]",
        "weights.detach().flatten()[order, None]",
        at("unit/test_experts", "test_every_token_reaches_its_experts_and_an_idle_expert_has_a_gradient_of_zero"),
    ),
    Fault(
        "tokens' gradient from this rank's part of the experts",
        TENSOR,
        "tokens = cast(DTensor, x).to_local(grad_placements=partial_gradient)",
        "tokens = cast(DTensor, x).to_local()",
        parity("tp-moe-float64"),
    ),
    Fault(
        "memory that nobody wrote is the gradient of an idle expert (pytorch #172439)",
        EXPERTS,
        "return gradient.masked_fill((counts == 0)[:, None, None], 0), None",
        "return gradient.masked_fill((counts == 0)[:, None, None], 1), None",
        at("unit/test_experts", "test_the_grouped_product_equals_the_loop_also_for_idle_experts"),
    ),
    Fault(
        "auxiliary loss without its gradient (Automodel #1408)",
        MOE,
        "weighted = (self.auxiliary * length) * imbalance",
        "weighted = (self.auxiliary * length) * imbalance.detach()",
        at("unit/test_experts", "test_balance_losses_of_samples_do_not_depend_on_the_batch_and_reach_the_router"),
    ),
    Fault(
        "auxiliary loss by the tokens of a micro-batch (Megatron #2217)",
        EXPERTS,
        "(relative * shares.mean(1)).sum(-1)",
        "(relative.mean(0) * shares.mean((0, 1))).sum().expand(len(x))",
        parity("ddp-moe-float64"),
    ),
    Fault(
        "auxiliary loss of padding, too",
        f"{TASKS}/__init__.py",
        "outputs = tuple(value[: micro.count] for value in outputs)",
        "outputs = (outputs[0][: micro.count], *outputs[1:])",
        parity("pp-moe-float64"),
    ),
    Fault(
        "load of padding, too",
        f"{TASKS}/__init__.py",
        "more[0][: micro.count, :, :-1].sum(0)",
        "more[0][:, :, :-1].sum(0)",
        parity("pp-moe-float64"),
    ),
    Fault(
        "load of the last micro-batch alone",
        f"{TASKS}/__init__.py",
        "self._load = self._load + more[0]",
        "self._load = more[0]",
        parity(f"ddp-moe-{HARD}"),
    ),
    Fault(
        "dropped tokens by the router's choices alone",
        f"{TASKS}/__init__.py",
        "sent.sum(1, keepdim=True) - computed",
        "sent.sum(1, keepdim=True) - load.sum(1, keepdim=True)",
        at("unit/test_experts", "test_rows_that_an_expert_leaves_out_count_as_dropped"),
    ),
    Fault(
        "bias by this rank's load",
        STEP,
        "engine.balance(tokens.view_as(load)[:, :-1])",
        "engine.balance(load[:, :-1])",
        parity("ddp-moe-float64"),
    ),
    Fault(
        "bias of the first layer alone (torchtitan #1593)",
        MOE,
        "if layer is not None:  # on another pipeline stage",
        "if layer is self.layers[0]:",
        reference("moe"),
    ),
    Fault(
        "tokens count once more when they are recomputed (torchtitan #1689)",
        EXPERTS,
        "load = tokens_per_expert(ids.flatten(1), self.experts)",
        "load = tokens_per_expert(ids.flatten(1), self.experts)\n"
        "        counts = vars(tokens_per_expert)\n"  # outside of the module, which a recomputation leaves as it was
        "        load[0] += counts.pop(id(self), 0)\n"
        "        counts[id(self)] = load.sum(0) if torch._C._current_graph_task_id() >= 0 else 0",
        parity(f"ddp-moe-{HARD}"),
    ),
    Fault(
        "bias moves towards the experts with most tokens",
        EXPERTS,
        "self.bias += rate * missing.sign()",
        "self.bias -= rate * missing.sign()",
        reference("moe"),
    ),
    Fault(
        "top 1 with normalized weights, of which the router learns nothing (minimind #858)",
        EXPERTS,
        "if top_k == 1 and normalize:",
        "if False:",
        at("unit/test_experts", "test_experts_that_cannot_be"),
    ),
    Fault(
        "rows return to other tokens",
        EXPERTS,
        "order, torch.arange(len(order), device=order.device)",
        "order, torch.arange(len(order), device=order.device).flip(0)",
        at("unit/test_experts", "test_every_token_reaches_its_experts_and_an_idle_expert_has_a_gradient_of_zero"),
    ),
    Fault(
        "choices of experts compared with another token's",
        f"{S}records/expert_choices.py",
        "(own[..., :, None] != other[..., None, :])",
        "(own[..., :, None] != other[:, ::-1, None, :])",
        at("unit/test_experts", "test_flips_are_choices_that_the_other_run_does_not_make_in_any_order"),
    ),
    # Experts split over ranks.
    Fault(
        "experts' gradient times the ranks of ep (Megatron #5956)",
        SPLIT,
        "return gradient / ctx.ranks, None",
        "return gradient, None",
        parity("ep-moe-float64"),
    ),
    Fault(
        "a divisor ignored where experts have one shard (pytorch #160285)",
        SPLIT,
        "ranks = mesh.size()",
        "ranks = 1 if mesh.size() == torch.distributed.get_world_size() else mesh.size()",
        parity("ep-moe-float64"),
    ),
    Fault(
        "a rank whose experts have no rows computes nothing, so that they have no gradient (Automodel #2995)",
        SPLIT,
        "results, computed = compute(own[order], received.sum(0, dtype=counts.dtype))",
        "results, computed = own, received.sum()\n    if len(own):\n"
        "        results, computed = compute(own[order], received.sum(0, dtype=counts.dtype))",
        at("parity/test_dispatch", "test_split_experts_equal_one_process[ours-4]"),
    ),
    Fault(
        "rows stay sorted by the rank that sent them",
        SPLIT,
        "results, computed = compute(own[order],",
        "results, computed = compute(own,",
        at("parity/test_dispatch", "test_split_experts_equal_one_process[ours-4]"),
    ),
    Fault(
        "exchanged rows without a gradient",
        SPLIT,
        "own = all_to_all_single_autograd(rows,",
        "own = all_to_all_single_autograd(rows.detach().requires_grad_(),",
        at("parity/test_dispatch", "test_split_experts_equal_one_process[ours-2]"),
    ),
    Fault(
        "each group of experts clips by its own norm (Automodel #3816)",
        NATIVE,
        "if not placement.is_replicate():",
        'if not placement.is_replicate() and mesh.mesh_dim_names[axis] != "ep":',
        parity("ep-moe-float64"),
    ),
    Fault(
        "norms of replicated gradients counted twice (DeepSpeed #8475)",
        NATIVE,
        "if not placement.is_replicate():",
        "if True:",
        parity("tp-moe-float64"),
    ),
    Fault(
        "auxiliary loss by the load of a part of the sequences (Megatron #5047)",
        EXPERTS,
        "self.over_sequence(load).to(precise)",
        "load.to(precise)",
        parity("cp-moe-float64"),
    ),
    Fault(
        "a stacked expert on one rank, and padding on the others",
        FSDP,
        "if len(shape) != 3 and packed != 0 and (not shape or shape[0] >= ranks):",
        "if True:",
        at("parity/test_memory", "test_stacked_experts_are_divided_whatever_their_number"),
    ),
    Fault(
        "the worst case of a plan has as many tokens as the mean",
        f"{S}plan/fake_ranks.py",
        "return [rows // top_k * min(top_k, held)] * ranks",
        "return [rows // ranks] * ranks",
        at("parity/test_memory", "test_a_plan_knows_the_memory_of_a_rank_whose_experts_all_tokens_choose"),
    ),
    Fault(
        "rows that stay on their rank count as sent",
        f"{S}measure/traffic.py",
        "sent = size * (1 - rows[dist.get_rank(group)] / sum(rows))",
        "sent = size",
        parity("ep-moe-float64"),
    ),
]

"""Mixtures of experts: silent faults of other projects, after which the loss is right and the gradient is wrong."""

from fault import NATIVE, STEP, TENSOR, Fault, S, at, parity, reference

EXPERTS, MOE, SPLIT = f"{S}models/_experts.py", f"{S}models/moe.py", f"{S}parallel/experts.py"

FAULTS = [
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
        parity("ddp-moe-accumulated-float64"),
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
        at("parity/test_memory", "test_experts_that_all_tokens_choose_are_planned_and_idle_ones_trained"),
        error=r"Timeout \(>",  # the other ranks wait for its gradient
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
]

"""What a learner answers in the course."""

KINDS = ("weights", "gradients", "optimizer")
PREDICTIONS = {
    "ddp": (152, 152, 152, 320),
    "fsdp": (228, 76, 76, 168),
    "tp": (256, 80, 80, 176),
    "pp": (512, 112, 112, 232),
}
RIGHT = {
    1: {
        "world_size": 8,
        "local_rank": 2,
        "mesh": [2, 1],
        "all_reduce": [4, 6],
        "reduce_scatter": [6],
        "all_gather": [1, 2, 3, 4],
        "all_to_all": [1, 3],
        "ddp_gradients": "all_reduce",
        "fsdp_weights": "all_gather",
        "fsdp_gradients": "reduce_scatter",
        "tp_outputs": "all_reduce",
        "pp_states": "send",
        "with_averaging": "equal",
        "without_averaging": "unequal",
    },
    2: {"tp_hidden_weight": [2, 6]},
    3: {
        f"{strategy}_{quantity}": number
        for strategy, numbers in PREDICTIONS.items()
        for quantity, number in zip(("sent", *KINDS), numbers, strict=True)
    },
    4: {"idle_1": 0.5, "idle_4": 0.2, "idle_16": 0.0588},
    5: {
        "cp_tokens": 32,
        "ep_experts": 4,
        "cp_weights": 0.5,
        "ep_weights": 0.743,
        "sends_most": "tp_sp",
        "sends_least": "ep",
    },
    6: {
        "strategy": "ddp",
        "cause": "not reduced",
        "file": "scripts/shardlab/parallel/parallelize.py",
    },
    7: {
        "tasks_with_torchrun": 2,
        "tasks_without_torchrun": 8,
        "rank": 5,
        "store_on_node": 0,
        "rdzv_id_differs": "jobs",
        "master_addr": "torchrun",
    },
}
"""By lesson; those of lesson 8 are in the files of its run."""


def wrong(answer):
    """Another answer of the same kind."""
    if isinstance(answer, str):
        return "broadcast"
    return [*reversed(answer), 9] if isinstance(answer, list) else answer * 1.5 + 1

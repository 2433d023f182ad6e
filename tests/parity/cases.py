"""Runs of the parity suite."""

import re
from dataclasses import dataclass

import pytest

from helpers.common import TINY, tiny_run
from shardlab.errors import Unsupported
from shardlab.settings import load

ALWAYS_CLIPPED = {"max_grad_norm": 0.01}
PLAIN_SGD = {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "loss_chunks": 2, "label_smoothing": 0.2}
ACCUMULATED = {
    "gradient_accumulation_steps": 2,
    "length_buckets": True,
    "loss_chunks": 3,
    "activation_checkpointing": "full",
} | ALWAYS_CLIPPED
# A rate that changes at each step: an engine that does not follow the schedule shows at the second.
ACCUMULATED |= {"lr_schedule": {"name": "constant", "warmup_steps": 3}}
GROUPS = {
    "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.2},
    "decay": "matrices",
    "ema_decay": 0.7,
    "groups": {"layers.0": {"learning_rate_factor": 0.5}, "output": {"weight_decay": 0.4}},
}
FREEZE = GROUPS | {"groups": {}, "freeze": ["embedding", "layers.0", "layers.*.mlp_norm"]}
"""Of two pipeline stages the first has nothing to train; in others a unit of FSDP has both kinds."""
ADAPTED = {
    "optimizer": {"name": "sgd", "learning_rate": 3.0, "momentum": 0.8},
    "adapter": {"rank": 2, "alpha": 4, "targets": ["layers.*.attention.*", "layers.1.down", "output"]},
}
"""Layers of both ways to split; the first of two pipeline stages has fewer."""
BESIDE_EXPERTS = ADAPTED | {"adapter": ADAPTED["adapter"] | {"targets": ["layers.*.attention.*", "output"]}}
MATRICES = {
    "optimizer": {"name": "muon", "learning_rate": 0.02, "weight_decay": 0.1},
    "groups": {"output": {"optimizer": "adamw", "learning_rate_factor": 0.1}},
}
COMPILED = {"compile": "blocks", "compile_backend": "aot_eager"}
SPREAD_ONLY = ("gradient_accumulation_steps", "length_buckets", "loss_chunks", "activation_checkpointing")
SPREAD_ONLY += ("compile", "compile_backend", "precision")
"""Keys of a recipe that must change no number: the reference trains without them."""
EXPERTS = ("ep", "fsdp_ep", "fsdp_tp_ep", "fsdp_ep_cp", "pp_ep")
STRATEGIES = [name for name in load.own_strategies() if name != "single"]


@dataclass(frozen=True)
class Case:
    """One run of the suite."""

    strategy: str
    workload: str
    recipe: tuple = ()
    ranks: int = 2
    fault: str = ""
    dtype: str = "float64"

    @property
    def native(self):
        return self.dtype == "float64"

    @property
    def reference(self):
        """The same training on one device."""
        recipe = tuple((key, value) for key, value in self.recipe if key not in SPREAD_ONLY)
        return Case("single", self.workload, recipe, dtype=self.dtype)

    @property
    def name(self):
        recipe = "_".join(f"{key}={value}" for key, value in self.recipe)
        ranks = str(self.ranks) if self.ranks != 2 else ""
        parts = (self.strategy, self.workload, re.sub(r"[^\w=.]+", "-", recipe), self.fault, self.dtype, ranks)
        return "-".join(filter(None, parts))

    def run(self):
        return tiny_run(self.workload, self.strategy, self.ranks, dtype=self.dtype, **dict(self.recipe))


def supported(case):
    try:
        return bool(case.run())
    except Unsupported:
        return False


def compared(strategy, workload, recipe=()):
    """A case in the dtype of its tolerance: DeepSpeed has no float64."""
    if "zero" not in strategy:
        return Case(strategy, workload, tuple(dict(recipe).items()))
    # AdamW's first steps make a whole update of the sign of a gradient that is nothing but rounding. In float32 at
    # llama2's rate that alone moves a later norm by 9e-6 on some processors (AMD EPYC), by 2e-6 on others.
    slower = {"optimizer": {"learning_rate": 3e-4}} if workload in ("llama2", "moe", "instruct") else {}
    return Case(strategy, workload, tuple((slower | dict(recipe)).items()), dtype="float32")


MATRIX = [compared(s, w) for s in STRATEGIES for w in TINY]
HARD = [compared(s, "llama2", ACCUMULATED) for s in STRATEGIES]
HARD += [compared(s, "moe", ACCUMULATED) for s in ("ddp", "fsdp", "hsdp", "mp", "pp", "tp_loss", "fsdp_tp", "zero2")]
HARD += [compared(s, "moe", ACCUMULATED) for s in EXPERTS]
PACKED = ("ddp", "pp_gpipe", "tp_loss", "cp", "cp_ring", "fsdp_tp_cp", "zero2")
HARD += [compared(s, "instruct", ACCUMULATED) for s in PACKED]
SELECTIVE = [compared(s, "vit", {"activation_checkpointing": "selective"}) for s in ("single", "fsdp", "tp", "pp")]
SELECTIVE += [compared("fsdp_tp", "llama2", {"activation_checkpointing": "alternate"})]
SGD = [
    compared(s, "xsum", PLAIN_SGD)
    for s in ("dp", "ddp", "fsdp", "hsdp", "mp", "pp", "tp_sp", "fsdp_tp", "fsdp_cp", "zero1", "zero2", "zero3")
]
SGD += [compared(s, "moe", PLAIN_SGD) for s in EXPERTS]
GROUPED = [compared(s, "llama2", GROUPS) for s in STRATEGIES]
FROZEN = [compared(s, "llama2", FREEZE) for s in STRATEGIES]
FROZEN += [compared(s, "moe", FREEZE) for s in ("tp_sp", *EXPERTS)]
ADAPTERS = [compared(s, "llama2", ADAPTED) for s in STRATEGIES]
ADAPTERS += [compared(s, "instruct", ADAPTED) for s in ("ddp", "fsdp", "pp", "tp_sp", "cp", "fsdp_tp", "zero3")]
ADAPTERS += [compared(s, "moe", BESIDE_EXPERTS) for s in ("pp", "tp", "tp_sp", *EXPERTS)]
MUON = [compared(s, "llama2", MATRICES) for s in STRATEGIES]
MUON += [compared(s, "moe", MATRICES) for s in EXPERTS]
# Vocabularies that ranks split.
SMOOTHED = [Case("tp_loss", w, tuple(PLAIN_SGD.items())) for w in ("llama2", "xsum")]
SMOOTHED += [Case(s, "llama2", (("label_smoothing", 0.2),)) for s in ("tp_loss", "pp")]
SMOOTHED += [Case(s, "vit", (("label_smoothing", 0.2),)) for s in ("fsdp", "tp_sp")]
MORE = [Case(s, "llama2", ranks=3) for s in ("ddp", "fsdp")]
MORE += [Case(s, "llama2", ranks=4) for s in ("ddp", "fsdp", "pp", "pp_gpipe")]
MORE += [Case(s, "xsum", ranks=4) for s in ("pp", "tp", "tp_sp")]
# Fewer key heads than ranks; documents of which some ranks have only padding.
MORE += [Case(s, w, ranks=4) for s in ("cp", "cp_ulysses", "cp_ring") for w in ("llama2", "xsum", "vit", "instruct")]
COMPILE = [
    compared(s, "llama2", COMPILED)
    for s in ("single", "ddp", "fsdp", "tp_sp", "fsdp_tp", "pp", "cp", "cp_ulysses", "cp_ring", "zero2")
]
MORE += [Case("ep", "moe", ranks=4)]  # a rank without tokens
MORE += [Case("fsdp_tp_ep", "moe", ranks=8)]
COMPILE += [compared(s, "moe", COMPILED) for s in ("single", "fsdp_tp", "ep", "zero2")]
COMPILE += [Case("ddp", "llama2", (("compile", "model"), ("compile_backend", "aot_eager")))]
FAULTY = [Case("ddp", "llama2", fault=fault) for fault in ("summed", "unreduced_norm", "dropped_embedding")]
TRAP = Case("fsdp_tp", "llama2", tuple(COMPILED.items()), fault="unprotected_embedding")
HALF = [
    Case(s, "vit", (("precision", "bf16"),), dtype="float32")
    for s in ("single", "ddp", "fsdp", "tp_sp", "pp", "fsdp_tp", "fsdp_pp", "zero1", "zero2", "zero3")
]
ROUNDED = [Case(s, "llama2", dtype="bfloat16") for s in ("ddp", "fsdp", "tp_sp", "pp")]
CASES = [
    case
    for case in (*MATRIX, *HARD, *SELECTIVE, *SGD, *GROUPED, *FROZEN, *ADAPTERS, *MUON, *SMOOTHED, *MORE, *COMPILE)
    if supported(case)
]
OTHERS = [c for c in MATRIX if c.workload != ("moe" if c.strategy in EXPERTS else "llama2")]
"""All workloads of each strategy but one."""
COVERING = {
    "mlp": ("ddp", "pp", "zero3"),
    "mnist": ("fsdp", "pp", "zero3"),
    "xsum": ("fsdp", "pp", "tp_sp", "cp", "zero3"),
    "vit": ("fsdp", "pp", "tp_sp", "cp", "zero3"),
    "moe": ("ddp", "fsdp", "pp", "tp_sp", "cp", "ep", "zero3"),
    # What packing could do wrong is in the model, or in how an axis splits it.
    "instruct": ("pp", "tp_sp", "cp"),
    "llama2": (),
}
"""Strategies of the short form for a workload: one of each technique that computes it in another way. Each strategy is
there on the workload that OTHERS leaves out.
"""
# Of each kind of recipe, the short form has the engines and the techniques that treat it in a way of their own.
LONG = [c for c in OTHERS if c.strategy not in COVERING[c.workload]]
LONG += [*MORE, TRAP]
LONG += [
    c
    for c in HARD
    if c.strategy not in {"llama2": ("ddp", "fsdp", "pp", "zero3"), "moe": ("pp", "ep")}.get(c.workload, ())
]
LONG += [c for c in SELECTIVE if (c.strategy, c.workload) != ("fsdp", "vit")]
LONG += [c for c in SGD if c.workload == "moe" or c.strategy not in ("fsdp", "pp", "zero3")]
LONG += [c for c in GROUPED if c.strategy not in ("fsdp", "pp", "zero1")]
LONG += [c for c in FROZEN if c.workload == "moe" or c.strategy not in ("pp", "zero3")]
LONG += [
    c
    for c in ADAPTERS
    if c.strategy not in {"llama2": ("pp", "tp_sp", "zero3"), "moe": ("tp_sp", "ep")}.get(c.workload, ())
]
LONG += [c for c in MUON if c.strategy not in ("fsdp", "fsdp_tp")]
LONG += [c for c in SMOOTHED if c.strategy != "tp_loss" or (c.workload, len(c.recipe)) == ("llama2", len(PLAIN_SGD))]
# A compiled block that ranks split differs from that of one device, that of other strategies does not.
LONG += [c for c in COMPILE if (c.strategy, c.workload) != ("tp_sp", "llama2")]
LONG += [c for c in HALF if c.strategy not in ("ddp", "fsdp", "zero3")]
LONG += [c for c in ROUNDED if c.strategy not in ("fsdp", "pp")]
"""Cases of the long form: four ranks wait for each other's cores, compilation takes long, and others cover the most."""


def parametrized(cases):
    """Parametrize a test with those of the cases that are supported."""
    return with_marks([case for case in cases if supported(case)], lambda case: case in LONG)


def with_marks(cases, is_long):
    """Parametrize a test with cases, some of them of the long form."""
    found = [pytest.param(case, id=case.name, marks=[pytest.mark.long] * is_long(case)) for case in cases]
    return pytest.mark.parametrize("case", found)


def requested(items, *, long):
    """The cases of the tests that were chosen; all of them if one is that looks at several."""
    every = [case for case in (*CASES, *FAULTY, TRAP, *HALF, *ROUNDED) if long or case not in LONG]
    of_items = [getattr(item, "callspec", None) for item in items if "results" in item.fixturenames]
    chosen = [spec.params if spec else {} for spec in of_items]
    if not all("case" in params or "fault" in params for params in chosen):
        return every
    named = [params.get("case") or Case("ddp", "llama2", fault=params["fault"]) for params in chosen]
    return [case for case in every if case in named]

"""Runs of the parity suite."""

import re
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from helpers.common import tiny_run
from shardlab.errors import Unsupported
from shardlab.settings import load

ALWAYS_CLIPPED = {"max_grad_norm": 0.01}
PLAIN_SGD = {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "loss_chunks": 2, "label_smoothing": 0.2}
ACCUMULATED = {
    "gradient_accumulation_steps": 2,
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
SPREAD_ONLY = ("gradient_accumulation_steps", "loss_chunks", "activation_checkpointing")
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
    long: bool = field(default=False, compare=False)
    """Only in the long form."""

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


def compared(strategy, workload, recipe=(), *, long=False):
    """A case in the dtype of its tolerance: DeepSpeed has no float64."""
    if "zero" not in strategy:
        return Case(strategy, workload, tuple(dict(recipe).items()), long=long)
    # AdamW's first steps make a whole update of the sign of a gradient that is nothing but rounding. In float32 at
    # llama2's rate that alone moves a later norm by 9e-6 on some processors (AMD EPYC), by 2e-6 on others.
    slower = {"optimizer": {"learning_rate": 3e-4}} if workload in ("llama2", "moe", "instruct") else {}
    return Case(strategy, workload, tuple((slower | dict(recipe)).items()), dtype="float32", long=long)


def rows(recipe, workload, short, more=()):
    """The cases of a recipe and a workload: strategies of the short form, and more of the long one."""
    long = [compared(strategy, workload, recipe, long=True) for strategy in more if strategy not in short]
    return [case for case in (*(compared(each, workload, recipe) for each in short), *long) if supported(case)]


# What packing could do wrong is in the model, or in how an axis splits it.
PACKED = ("ddp", "pp_gpipe", "tp_loss", "cp", "cp_ring", "fsdp_tp_cp", "zero2")
SEVERAL = ("fsdp_tp_sp", "fsdp_tp_cp", "fsdp_pp_cp", "fsdp_tp_pp", "pp_replicated", *EXPERTS[2:])
"""Of these, each pair of axes is in other strategies, too, and most have eight ranks for two cores."""
MATRIX = rows({}, "llama2", [name for name in STRATEGIES if name not in (*EXPERTS, *SEVERAL)], SEVERAL)
# Of each workload one of each technique that computes it in another way; of each kind of recipe the engines and the
# techniques that treat it in a way of their own.
MATRIX += rows({}, "mlp", ("ddp", "pp", "zero3"), STRATEGIES)
MATRIX += rows({}, "mnist", ("fsdp", "pp", "zero3"), STRATEGIES)
MATRIX += rows({}, "xsum", ("fsdp", "pp", "tp_sp", "cp", "zero3"), STRATEGIES)
MATRIX += rows({}, "vit", ("fsdp", "pp", "tp_sp", "cp", "zero3"), STRATEGIES)
MATRIX += rows({}, "moe", ("ddp", "fsdp", "pp", "tp_sp", "cp", "zero3", *EXPERTS[:2]), STRATEGIES)
MATRIX += rows({}, "instruct", ("pp", "tp_sp", "cp"), STRATEGIES)
HARD = rows(ACCUMULATED, "llama2", ("ddp", "fsdp", "pp", "zero3"), STRATEGIES)
HARD += rows(ACCUMULATED, "moe", ("pp", "ep"), ("ddp", "fsdp", "hsdp", "mp", "tp_loss", "fsdp_tp", "zero2", *EXPERTS))
HARD += rows(ACCUMULATED, "instruct", (), PACKED)
SELECTIVE = rows({"activation_checkpointing": "selective"}, "vit", ("fsdp",), ("single", "tp", "pp"))
SELECTIVE += rows({"activation_checkpointing": "alternate"}, "llama2", (), ("fsdp_tp",))
SGD = rows(
    PLAIN_SGD,
    "xsum",
    ("fsdp", "pp", "zero3"),
    ("dp", "ddp", "hsdp", "mp", "tp_sp", "fsdp_tp", "fsdp_cp", "zero1", "zero2"),
)
SGD += rows(PLAIN_SGD, "moe", (), EXPERTS)
GROUPED = rows(GROUPS, "llama2", ("fsdp", "pp", "zero1"), STRATEGIES)
FROZEN = rows(FREEZE, "llama2", ("pp", "zero3"), STRATEGIES)
FROZEN += rows(FREEZE, "moe", (), ("tp_sp", *EXPERTS))
ADAPTERS = rows(ADAPTED, "llama2", ("pp", "tp_sp", "zero3"), STRATEGIES)
ADAPTERS += rows(ADAPTED, "instruct", (), ("ddp", "fsdp", "pp", "tp_sp", "cp", "fsdp_tp", "zero3"))
ADAPTERS += rows(BESIDE_EXPERTS, "moe", ("tp_sp", "ep"), ("pp", "tp", *EXPERTS))
MUON = rows(MATRICES, "llama2", ("fsdp", "fsdp_tp"), STRATEGIES)
MUON += rows(MATRICES, "moe", (), EXPERTS)
# Vocabularies that ranks split.
SMOOTHED = rows(PLAIN_SGD, "xsum", ("tp_loss",)) + rows(PLAIN_SGD, "llama2", (), ("tp_loss",))
SMOOTHED += rows({"label_smoothing": 0.2}, "llama2", ("tp_loss",), ("pp",))
SMOOTHED += rows({"label_smoothing": 0.2}, "vit", (), ("fsdp", "tp_sp"))
# A compiled block that ranks split differs from that of one device, that of other strategies does not.
COMPILE = rows(
    COMPILED,
    "llama2",
    ("tp_sp",),
    ("single", "ddp", "fsdp", "fsdp_tp", "pp", "cp", "cp_ulysses", "cp_ring", "zero2"),
)
COMPILE += rows(COMPILED, "moe", (), ("single", "fsdp_tp", "ep", "zero2"))
COMPILE += rows({"compile": "model", "compile_backend": "aot_eager"}, "llama2", (), ("ddp",))
# Other numbers of ranks, which wait for each other's cores.
MORE = [Case(s, "llama2", ranks=3, long=True) for s in ("ddp", "fsdp")]
MORE += [Case(s, "llama2", ranks=4, long=True) for s in ("ddp", "fsdp", "pp", "pp_gpipe")]
MORE += [Case(s, "xsum", ranks=4, long=True) for s in ("pp", "tp", "tp_sp")]
# Fewer key heads than ranks; documents of which some ranks have only padding.
FEW_HEADS = ("llama2", "xsum", "vit", "instruct")
MORE += [Case(s, w, ranks=4, long=True) for s in ("cp", "cp_ulysses", "cp_ring") for w in FEW_HEADS]
MORE += [Case("ep", "moe", ranks=4, long=True)]  # a rank without tokens
MORE += [Case("fsdp_tp_ep", "moe", ranks=8, long=True)]
EQUAL = [*MATRIX, *HARD, *SELECTIVE, *SGD, *GROUPED, *FROZEN, *ADAPTERS, *MUON, *SMOOTHED, *COMPILE, *MORE]
FAULTY = [Case("ddp", "llama2", fault=fault) for fault in ("summed", "unreduced_norm", "dropped_embedding")]
# Without the clone in tensor.py, FSDP+TP silently trains with a wrong gradient, which the loss alone would hardly show.
FAULTY += [Case("fsdp_tp", "llama2", tuple(COMPILED.items()), fault="unprotected_embedding", long=True)]
HALF = [Case(s, "vit", (("precision", "bf16"),), dtype="float32") for s in ("ddp", "fsdp", "zero3")]
HALF += [
    Case(s, "vit", (("precision", "bf16"),), dtype="float32", long=True)
    for s in ("single", "tp_sp", "pp", "fsdp_tp", "fsdp_pp", "zero1", "zero2")
]
ROUNDED = [Case(s, "llama2", dtype="bfloat16", long=s in ("ddp", "tp_sp")) for s in ("ddp", "fsdp", "tp_sp", "pp")]


def chosen(request):
    """The parameters of the tests that will run and ask for the fixture of this request."""
    items = [item for item in request.session.items if request.fixturename in item.fixturenames]
    items = [item for item in items if not item.get_closest_marker("skip") and item.path == request.path]
    found = [value for item in items for value in getattr(item, "callspec", SimpleNamespace(params={})).params.values()]
    return [value for number, value in enumerate(found) if value not in found[:number]]


def parametrized(cases):
    """Parametrize a test with cases."""
    return with_marks(cases, lambda case: case.long)


def with_marks(cases, is_long):
    """Parametrize a test with cases, some of them of the long form."""
    found = [pytest.param(case, id=case.name, marks=[pytest.mark.long] * is_long(case)) for case in cases]
    return pytest.mark.parametrize("case", found)

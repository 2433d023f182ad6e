"""Runs of the parity suite."""

import re
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from helpers.common import tiny_run
from shardlab.settings import load

ALWAYS_CLIPPED = {"max_grad_norm": 0.01}
MATRICES_DECAY = {
    "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.2},
    "decay": "matrices",
    "ema_decay": 0.7,
}
# Layers of both ways to split; the first of two pipeline stages has fewer.
ADAPTER = {"rank": 2, "alpha": 4, "targets": ["layers.*.attention.*", "layers.1.down", "output"]}
RECIPES = {
    "": {},
    # A rate that changes at each step: an engine that does not follow the schedule shows at the second.
    "accumulated": {
        "gradient_accumulation_steps": 2,
        "loss_chunks": 3,
        "activation_checkpointing": "full",
        "lr_schedule": {"name": "constant", "warmup_steps": 3},
    }
    | ALWAYS_CLIPPED,
    "sgd": {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "loss_chunks": 2, "label_smoothing": 0.2},
    "smoothed": {"label_smoothing": 0.2},
    "selective": {"activation_checkpointing": "selective"},
    "grouped": MATRICES_DECAY
    | {"groups": {"layers.0": {"learning_rate_factor": 0.5}, "output": {"weight_decay": 0.4}}},
    # Of two pipeline stages the first has nothing to train; in others a unit of FSDP has both kinds.
    "frozen": MATRICES_DECAY | {"freeze": ["embedding", "layers.0", "layers.*.mlp_norm"]},
    "adapted": {"optimizer": {"name": "sgd", "learning_rate": 3.0, "momentum": 0.8}, "adapter": ADAPTER},
    "muon": {
        "optimizer": {"name": "muon", "learning_rate": 0.02, "weight_decay": 0.1},
        "groups": {"output": {"optimizer": "adamw", "learning_rate_factor": 0.1}},
    },
    "compiled": {"compile": "blocks", "compile_backend": "aot_eager"},
    "bf16": {"precision": "bf16"},
}
HARD = {"gradient_accumulation_steps": 2, "activation_checkpointing": "full", "label_smoothing": 0.1}
RECIPES["hard"] = HARD | ALWAYS_CLIPPED
# Of models of the library. Adam makes updates of rounding alone.
RECIPES["adapted_attention"] = {
    "optimizer": {"name": "sgd", "learning_rate": 0.3, "momentum": 0.8},
    "adapter": {"rank": 3, "alpha": 6, "targets": ["model.layers.*.self_attn.*_proj"]},
}
RECIPES["beside_experts"] = RECIPES["adapted"] | {"adapter": ADAPTER | {"targets": ["layers.*.attention.*", "output"]}}
SPREAD_ONLY = ("gradient_accumulation_steps", "loss_chunks", "activation_checkpointing")
SPREAD_ONLY += ("compile", "compile_backend", "precision")
"""Keys of a recipe that must change no number: the reference trains without them."""
SLOWER = {"optimizer": {"learning_rate": 3e-4}}
"""AdamW's first steps make a whole update of the sign of a gradient that is nothing but rounding. In float32 at
llama2's rate that alone moves a later norm by 9e-6 on some processors (AMD EPYC), by 2e-6 on others.
"""
EXPERTS = ("ep", "fsdp_ep", "fsdp_tp_ep", "fsdp_ep_cp", "pp_ep")
STRATEGIES = [name for name in load.own_strategies() if name != "single"]


@dataclass(frozen=True)
class Case:
    """One run of the suite."""

    strategy: str
    workload: str
    recipe: tuple = ()
    ranks: int = 2
    dtype: str = ""
    """That of the tolerance, if not given: DeepSpeed has no float64."""
    long: bool = field(default=False, compare=False)
    """Only in the long form."""

    def __post_init__(self):
        if not self.dtype:
            object.__setattr__(self, "dtype", "float32" if "zero" in self.strategy else "float64")

    @property
    def native(self):
        return self.dtype == "float64"

    @property
    def plain(self):
        """The workload's own recipe on two ranks per axis."""
        return not self.recipe and self.ranks == 2

    @property
    def reference(self):
        """The same training on one device."""
        recipe = tuple((key, value) for key, value in self.recipe if key not in SPREAD_ONLY)
        return type(self)("single", self.workload, recipe, dtype=self.dtype)

    @property
    def label(self):
        """The name of the recipe."""
        return next((label for label, recipe in RECIPES.items() if (*recipe.items(),) == self.recipe), None)

    @property
    def name(self):
        recipe = "_".join(f"{key}={value}" for key, value in self.recipe) if self.label is None else self.label
        ranks = str(self.ranks) if self.ranks != 2 else ""
        parts = (self.strategy, self.workload, re.sub(r"[^\w=.]+", "-", recipe), self.dtype, ranks)
        return "-".join(filter(None, parts))

    def run(self):
        slower = SLOWER if self.dtype == "float32" and self.workload in ("llama2", "moe", "instruct") else {}
        recipe = slower | dict(self.recipe)
        return tiny_run(self.workload, self.strategy, self.ranks, dtype=self.dtype, **recipe)


def rows(recipe, workload, short="", long="", kind=Case, **more):
    """The cases of a recipe and a workload: names of strategies of the short form, and more of the long one."""
    named = [(name, False) for name in short.split()] + [(name, True) for name in long.split()]
    return [kind(name, workload, (*RECIPES[recipe].items(),), long=is_long, **more) for name, is_long in named]


# Of these, each pair of axes is in other strategies, too, and most have eight ranks for two cores; a schedule, a stage
# or an offload that an engine drives as it does another one.
SEVERAL = "fsdp_tp_sp fsdp_tp_cp fsdp_pp_cp fsdp_tp_pp pp_replicated pp_gpipe zero1 zero3_offload"
ONCE = [name for name in STRATEGIES if name not in (*EXPERTS, *SEVERAL.split())]
# Of each workload one of each technique that computes it in another way; of each kind of recipe the engines and the
# techniques that treat it in a way of their own. `make matrix` trains every strategy on every workload.
EQUAL = [
    *rows("", "llama2", " ".join(ONCE), SEVERAL),
    *rows("", "mlp", "ddp zero3", "dp fsdp hsdp pp tp"),
    *rows("", "mnist", "pp", "fsdp zero3 mp tp"),
    *rows("", "xsum", "cp cp_ring", "fsdp pp tp_sp zero3 ddp mp pp_zbv tp_loss cp_ulysses fsdp_tp fsdp_tp_cp"),
    *rows("", "vit", "pp tp_sp cp", "fsdp zero3 ddp mp pp_zbv tp cp_ulysses cp_ring fsdp_cp"),
    *rows("", "moe", "ddp fsdp pp tp_sp cp zero3 ep fsdp_ep", "tp fsdp_tp pp_zbv cp_ring fsdp_tp_ep fsdp_ep_cp pp_ep"),
    # What packing could do wrong is in the model, or in how an axis splits it.
    *rows("", "instruct", "pp cp cp_ring", "tp_sp ddp tp_loss cp_ulysses fsdp_tp_cp zero2"),
    *rows("accumulated", "llama2", "ddp fsdp pp zero3", "hsdp mp tp tp_sp cp cp_ring fsdp_tp fsdp_tp_pp zero1"),
    *rows("accumulated", "moe", "ep", "pp ddp tp_loss fsdp_tp zero2 fsdp_tp_ep fsdp_ep_cp pp_ep"),
    *rows("selective", "vit", "fsdp", "single tp pp"),
    *rows("sgd", "xsum", "fsdp pp zero3 tp_loss", "dp hsdp tp_sp fsdp_cp zero1"),
    *rows("grouped", "llama2", "fsdp zero1", "pp ddp mp tp_sp fsdp_tp fsdp_pp zero2 zero3"),
    *rows("frozen", "llama2", "pp", "zero3 ddp fsdp mp tp cp fsdp_tp zero1"),
    *rows("adapted", "llama2", "tp_sp zero3", "pp ddp fsdp mp tp cp fsdp_tp pp_zbv zero1"),
    *rows("beside_experts", "moe", "ep", "tp_sp pp fsdp_tp_ep"),
    *rows("muon", "llama2", "fsdp", "fsdp_tp ddp hsdp tp_sp pp"),
    *rows("muon", "moe", "", "ep fsdp_tp_ep"),
    *rows("smoothed", "llama2", "", "tp_loss"),  # whose ranks split the vocabulary; in the short form that of xsum
    # A compiled block that ranks split differs from that of one device, that of other strategies does not.
    *rows("compiled", "llama2", "tp", "single ddp fsdp tp_sp fsdp_tp pp cp_ring zero2"),
    *rows("compiled", "moe", "", "fsdp_tp ep"),
    # Other numbers of ranks, which wait for each other's cores; fewer key heads than ranks; documents of which some
    # ranks have only padding; a rank without tokens.
    *rows("", "llama2", "", "fsdp", ranks=3),
    *rows("", "llama2", "", "pp cp_ulysses", ranks=4),
    *rows("", "xsum", "", "tp_sp cp", ranks=4),
    *rows("", "instruct", "", "cp cp_ulysses cp_ring", ranks=4),
    *rows("", "moe", "", "ep", ranks=4),
    *rows("", "moe", "", "fsdp_tp_ep", ranks=8),
]
HALF = rows("bf16", "vit", "ddp fsdp zero3", "single tp_sp pp fsdp_tp zero1", dtype="float32")
ROUNDED = rows("", "llama2", "fsdp pp", "tp_sp", dtype="bfloat16")


def chosen(request):
    """The parameters of the tests that will run and ask for the fixture of this request."""
    items = [item for item in request.session.items if request.fixturename in item.fixturenames]
    items = [item for item in items if not item.get_closest_marker("skip") and item.path == request.path]
    found = [value for item in items for value in getattr(item, "callspec", SimpleNamespace(params={})).params.values()]
    return [value for number, value in enumerate(found) if value not in found[:number]]


def parametrized(cases):
    """Parametrize a test with cases, some of them of the long form."""
    found = [pytest.param(case, id=case.name, marks=[pytest.mark.long] * case.long) for case in cases]
    return pytest.mark.parametrize("case", found)

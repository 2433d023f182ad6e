"""Models as other people write them, under one strategy of each engine, equal to plain PyTorch on one device.

What a training leaves and, if it stopped on the way, what it resumes with; or the sentence that refuses the model.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import foreign
import pytest
import torch
from cases import with_marks
from foreign import MODELS
from foreign_models import ENGINES
from group import Group, job, reference_captures, steps, worst
from safetensors.torch import load_file
from worker import REFUSAL

from shardlab.plan.simulate import simulate
from shardlab.settings import registry
from shardlab.settings.recipe import Recipe
from shardlab.train.evaluation import evaluate_whole
from traindiff.capture_files import Capture
from traindiff.diagnosis import diagnose
from traindiff.pair import Pair

pytestmark = pytest.mark.timeout(2400)  # the first test waits for the trainings of all
KINDS = ("dtypes", "frozen", "buffers_in_forward", "shapes_and_ties", "constructors", "sometimes_unused")
"""Kinds of models that are trained; that the others are refused tests/unit/test_contents.py shows."""
SAME = ("dtypes", "shapes_and_ties", "constructors")
"""Kinds whose models are loaded by the same code under every strategy that does not shard each tensor."""
MIXED = {"global_batch_size": 4}
"""Recipe of models with batch norm: one takes no single sample, which 5 would leave a rank."""
CHAINS = ("dp", "mp", "mp_ranks", "pp", "pp_interleaved", "pp_zbv", "tp", "hsdp", "fsdp_offload", "fsdp_tp", "fsdp_pp")
"""Strategies besides those of ENGINES for a model that can be cut."""
FOUR_RANKS = ("hsdp", "fsdp_tp", "fsdp_pp")
ORDERS = (("fsdp", "ddp", "single"), ("zero3", "zero1"))
"""Strategies of the short form, the first that is expected to be equal."""
AVERAGING = ("pp", "pp_interleaved", "pp_zbv", "mp", "hsdp", "fsdp_pp")
"""Strategies for a chain whose stages follow their inputs."""
CHECKPOINTS = {"checkpoint_interval_steps": 2}


@dataclass(frozen=True)
class Case:
    strategy: str
    model: str
    dtype: str = "float64"
    blocks: tuple | None = None
    precision: str = "full"
    key: str = ""
    """Option of the strategy or of the recipe that makes it equal."""
    recomputed: bool = False

    @property
    def name(self):
        precision = self.precision if self.low else self.dtype
        blocks = "-".join(self.blocks or ())
        return f"{self.strategy}-{self.model}-{precision}{blocks}{self.key}" + "-full" * self.recomputed

    @property
    def low(self):
        return self.precision != "full"

    @property
    def kind(self):
        return MODELS[self.model].kind

    @property
    def expected(self):
        return "equal" if self.key else MODELS[self.model].expects.get(self.strategy, "equal")

    @property
    def native(self):
        return self.dtype == "float64"

    @property
    def native_engine(self):
        return not self.strategy.startswith("zero")

    def run(self):
        of_recipe = {self.key: True} if self.key in Recipe.model_fields else {}
        of_recipe |= {"activation_checkpointing": "full"} if self.recomputed else {}
        of_recipe |= MIXED if self.kind == "buffers_in_forward" else {}
        keys = CHECKPOINTS | {"dtype": self.dtype, "precision": self.precision}
        run = foreign.run_of(self.model, self.strategy, **keys, **of_recipe)
        if self.key and self.key not in of_recipe:
            run = run.model_copy(update={"options": run.options.model_copy(update={self.key: True})})
        model = run.model.model_copy(update={} if self.blocks is None else {"blocks": [*self.blocks]})
        return run.model_copy(update={"model": model})


RESUMED_IN_SHORT = Case("fsdp", "averaging_chain")
"""Its ranks have other samples, so statistics that a step does not share, or a resume not restore, differ."""


def is_long(case):
    """The short form tries each model under one of PyTorch's strategies, the first that makes it equal, and under one
    of DeepSpeed's if that engine itself treats what the model contains in another way.
    """
    if case.low:
        return case.native_engine
    if case.key:
        return case.strategy in ("hsdp", "zero1")
    if case.model == "averaging_chain":
        return case.strategy not in ("pp", "mp") and case != RESUMED_IN_SHORT
    if case.model in foreign.PLANS:
        return case.strategy in FOUR_RANKS
    if not case.native_engine and case.kind not in ("frozen", "sometimes_unused"):
        return True
    first = [next(filter(lambda each: MODELS[case.model].expects[each] == "equal", order), "") for order in ORDERS]
    return case.strategy not in first or (case.dtype == "float32" and case.native_engine)


def cases(name, kind):
    """The cases of a model: in float64, but for DeepSpeed; in float32, too, where types are what matters."""
    for engine in ENGINES:
        case = Case(engine, name, "float32" if engine.startswith("zero") else "float64")
        # One device is what all strategies are equal to.
        if not ((kind in SAME or engine == "single") and is_long(case)):
            yield case
        if kind == "dtypes" and engine == "fsdp":
            yield Case(engine, name, "float32")


CASES = [case for name, entry in MODELS.items() if entry.kind in KINDS for case in cases(name, entry.kind)]
CASES += [Case(strategy, "low_rank_chain") for strategy in CHAINS]
CASES.append(Case("zero2", "low_rank_chain", "float32"))
CASES.append(Case("fsdp", "precise_block", "float32", ("first",)))  # the root has parameters of two types
# Ranks that use other parameters than the others, in some steps, or never; a batch norm of all ranks' samples.
UNUSED_BY_SOME = ("unused_pooler", "skipped_experts")
CASES += [Case(s, name, key="find_unused_parameters") for s in ("ddp", "fsdp") for name in UNUSED_BY_SOME]
CASES += [Case(s, "batch_norm", key="sync_batch_norm") for s in ("ddp", "fsdp", "hsdp")]
CASES += [Case(s, "batch_norm", "float32", key="sync_batch_norm") for s in ("zero1", "zero3")]
LOW = [Case(each, "low_rank", "float32", precision="bf16") for each in ("zero1", "zero3", "fsdp", "ddp")]
CASES += LOW
CASES += [Case(strategy, "averaging_chain") for strategy in AVERAGING]
RECOMPUTED = [
    replace(case, recomputed=True)
    for case in CASES
    if case.model in ("batch_norm", "averaging_chain") and case.strategy != "pp_zbv"
]
CASES += RECOMPUTED
REFUSED = [case for case in CASES if case.expected.startswith("refused") and case.model == "empty_parameter"]
TRAINED = [case for case in CASES if not case.expected.startswith("refused")]
RESUMED = [case for case in TRAINED if case.kind not in ("shapes_and_ties", "constructors")]
# What the chain that averages computes depends on its micro-batches.
EQUAL = [case for case in TRAINED if case.expected == "equal" and not case.low and case.model != "averaging_chain"]


@pytest.fixture(scope="module", autouse=True)
def _registered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "names", registry.names)
        foreign.register()
        yield


@pytest.fixture(scope="module")
def results(request, server, tmp_path_factory, tiny_data):
    """Folder with the results of the requested cases, and of those that are resumed from step 2; others write no
    checkpoints, which nothing would read.
    """
    data = tmp_path_factory.mktemp("data")
    group = Group(server, tmp_path_factory.mktemp("foreign"), data)
    items = [item for item in request.session.items if item.path == Path(__file__) and "results" in item.fixturenames]
    requested = {item.callspec.params["case"] for item in items}
    long = request.config.getoption("--long")
    if not long:
        requested = {case for case in requested if not is_long(case)}
    requested |= {replace(case, recomputed=False) for case in requested}
    continued = RESUMED if long else [RESUMED_IN_SHORT]
    trained, resumed = defaultdict(list), defaultdict(list)
    for case in CASES:
        if case in requested:
            trained[case.run().world_size].append(case)
            if case in continued:
                resumed[case.run().world_size].append(case)
            if not (data / case.model).exists():
                (data / case.model).symlink_to(tiny_data / foreign.DATA)
    for ranks, cases in trained.items():
        for case in cases:
            run = case.run()
            if not (long or case in continued):
                recipe = run.recipe.model_copy(update=dict.fromkeys(CHECKPOINTS))
                run = run.model_copy(update={"recipe": recipe})
            group.add(case.name, run, refused=case in REFUSED)
        group.start(ranks)
    for ranks, cases in resumed.items():
        for case in cases:
            group.add(f"{case.name}-resumed", case.run(), resume=case.name)
        group.start(ranks)
    return group.folder


PLAIN = {}


def plain(case, folder):
    """The plain training of a case, computed once for all strategies of its dtype."""
    run = case.run()
    key = case.model, run.recipe.dtype
    if key not in PLAIN:
        PLAIN[key] = foreign.plain_training(run, folder)
    return PLAIN[key]


@with_marks(EQUAL, is_long)
def test_equals_plain_pytorch(results, case, tiny_data):
    """In losses, norms and the weights that it leaves, each in its own dtype; what is not trained exactly."""
    run, expected = case.run(), plain(case, tiny_data / foreign.DATA)
    pairs = list(zip(steps(results / case.name), expected["steps"], strict=True))
    test = evaluate_whole(run, tiny_data / foreign.DATA, results / case.name / "model.safetensors").loss
    apart = {
        "loss": worst(actual["loss"] / step["loss"] - 1 for actual, step in pairs),
        "norm": worst(actual["grad_norm"] / step["grad_norm"] - 1 for actual, step in pairs),
        "test": worst([test / expected["test"] - 1]),
    }
    within = dict.fromkeys(apart, 1e-10) if case.native else {"loss": 5e-6, "norm": 5e-6, "test": 1e-4}
    assert {key: value for key, value in apart.items() if not value <= within[key]} == {}
    check_weights(results, case, expected["network"])


def check_weights(results, case, network):
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    before = load_file(results / f"{case.model}-{case.dtype}.safetensors")
    actual = load_file(results / case.name / "model.safetensors")
    expected = {name: value for name, value in network.state_dict().items() if isinstance(value, torch.Tensor)}
    for name, value in actual.items():
        whole = as_saved(expected.pop(name))
        assert value.dtype == whole.dtype, name
        assert value.shape == whole.shape, name
        initial = before[name]
        # What a forward pass computed has roundings, like what is trained.
        computed = value.is_floating_point() and not torch.equal(initial.nan_to_num(), whole.nan_to_num())
        if name not in trained and not computed:
            torch.testing.assert_close(value, whole, rtol=0, atol=0, equal_nan=True)
        elif value.numel():
            size = 1e-10 if case.native else 1e-5
            assert float((value - whole).abs().max()) <= size * float(whole.abs().max()), name
    assert set(expected) <= tied(network), "other names of tied weights"


def tied(network):
    """Names of weights that have an earlier one."""
    kinds = (network.named_parameters, network.named_buffers)
    every = {name for named in kinds for name, _ in named(remove_duplicate=False)}
    return every - {name for named in kinds for name, _ in named()}


def as_saved(value):
    """Safetensors has no complex128: pairs of float64."""
    return torch.view_as_real(value) if value.dtype == torch.complex128 else value


@with_marks(LOW, is_long)
def test_low_precision_leaves_frozen_weights_as_they_were(results, case):
    """Although the model computes with roundings of them."""
    initial = load_file(results / f"{case.model}-{case.dtype}.safetensors")
    trained = load_file(results / case.name / "model.safetensors")
    frozen = {name for name, value in initial.items() if ".base." in name}
    assert frozen
    assert any(not initial[name].equal(initial[name].bfloat16().float()) for name in frozen)
    assert {name for name, value in trained.items() if value.equal(initial[name])} == frozen


@with_marks(RESUMED, lambda case: case != RESUMED_IN_SHORT)
def test_a_resumed_training_is_the_same(results, case):
    """Bitwise, from the checkpoint of step 2, which a run writes and reads under each engine."""
    whole, resumed = results / case.name, results / f"{case.name}-resumed"
    assert [step["step"] for step in steps(resumed)] == [2, 3]
    for key in ("loss", "grad_norm"):
        assert [step[key] for step in steps(resumed)] == [step[key] for step in steps(whole)[2:]]
    ours, expected = (json.loads((path / "train.json").read_text())["validation_loss"] for path in (resumed, whole))
    assert ours == expected, "computed by all ranks, each with its own buffers"
    ours, expected = (load_file(path / "model.safetensors") for path in (resumed, whole))
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0, equal_nan=True, msg=name)


@with_marks(
    [Case("zero1", "empty_parameter", "float32"), Case("pp", "low_rank_chain")], lambda case: case.native_engine
)
def test_a_diagnosis_finds_nothing(server, case, tiny_data, tmp_path):
    data = tiny_data / foreign.DATA
    run, single = (foreign.run_of(case.model, strategy, dtype=case.dtype) for strategy in (case.strategy, "single"))
    server.work_off(reference_captures(single, run, data, tmp_path), tmp_path, 1)
    server.work_off([job(run, data, tmp_path / "initial.safetensors", tmp_path / "run", capture=True)], tmp_path, 2)
    pair = Pair(*(Capture(tmp_path / name) for name in ("run", "single", "twin")))
    assert diagnose(pair).sentence == "Nothing differs in steps 0-3."


@with_marks([Case(strategy, "low_rank_chain") for strategy in ("ddp", "fsdp", "pp")], is_long)
def test_a_plan_has_neither_gradients_nor_states_of_frozen_parameters(results, case, tiny_data):
    (plan,) = simulate([(case.run(), tiny_data / foreign.DATA)])
    report = json.loads((results / case.name / "train.json").read_text())
    planned, measured = (each["tensor_bytes"][0]["largest"] for each in (plan, report))
    kinds = ("weights", "gradients", "optimizer")
    assert {kind: planned[kind] for kind in kinds} == {kind: measured[kind] for kind in kinds}


@with_marks(RECOMPUTED, is_long)
def test_a_recomputation_changes_nothing(results, case):
    """Bitwise: buffers are updated once, and seen as they were in the forward pass."""
    ours, expected = (
        load_file(results / each.name / "model.safetensors") for each in (case, replace(case, recomputed=False))
    )
    assert all(value.equal(expected[name]) for name, value in ours.items())


@with_marks([case for case in CASES if case.model == "averaging_chain"], is_long)
def test_a_stage_counts_the_micro_batches_that_it_trains_on(results, case):
    """Not the pass with which PyTorch infers a pipeline's shapes, on uninitialized inputs."""
    weights = load_file(results / case.name / "model.safetensors")
    micro_batches = case.run().options.n_microbatches if case.run().mesh.pipelined else 1
    counts = [int(weights[f"layers.{number}.norm.num_batches_tracked"]) for number in range(4)]
    assert counts == [4 * micro_batches] * 4
    assert all(float(weights[f"layers.{number}.norm.running_mean"].abs().max()) < 10 for number in range(4))


@with_marks(REFUSED, is_long)
def test_is_refused_in_one_sentence(results, case):
    """By its ranks, too, which have not seen what tests/unit/test_contents.py sees before they start."""
    sentence = (results / case.name / REFUSAL).read_text()
    assert case.expected.removeprefix("refused: ") in sentence
    assert "\n" not in sentence

"""Models as other people write them, equal to plain PyTorch on one device: what a training leaves and resumes with.

That the others are refused tests/unit/test_contents.py shows.
"""

import json
from dataclasses import dataclass

import foreign
import pytest
import torch
from cases import chosen, with_marks
from foreign import MODELS
from group import Group, steps, worst
from safetensors.torch import load_file

from shardlab.settings import registry
from shardlab.settings.recipe import Recipe
from shardlab.train.evaluation import evaluate_whole

pytestmark = pytest.mark.timeout(2400)  # the first test waits for the trainings of all
MIXED = {"global_batch_size": 4}
"""Recipe of models with batch norm: one takes no single sample, which 5 would leave a rank."""


@dataclass(frozen=True)
class Case:
    strategy: str
    model: str
    dtype: str = ""
    """If another than that of the strategy's engine."""
    key: str = ""
    """Option of the strategy or of the recipe that makes it equal."""
    resumed: bool = False
    """It also stops after two steps, and goes on."""

    @property
    def name(self):
        return "-".join(filter(None, (self.strategy, self.model, self.dtype, self.key)))

    @property
    def native(self):
        return not (self.dtype or self.strategy.startswith("zero"))

    @property
    def equal(self):
        # What the chain that averages computes depends on its micro-batches.
        return self.model != "averaging_chain"

    def run(self):
        recipe = {self.key: True} if self.key in Recipe.model_fields else {}
        recipe |= MIXED if MODELS[self.model].kind == "buffers_in_forward" else {}
        recipe |= {"checkpoint_interval_steps": 2} if self.resumed else {}
        dtype = "float64" if self.native else "float32"
        run = foreign.run_of(self.model, self.strategy, dtype=dtype, **recipe)
        if self.key and self.key not in recipe:
            run = run.model_copy(update={"options": run.options.model_copy(update={self.key: True})})
        return run


SHORT = [Case(strategy, name) for name, entry in MODELS.items() for strategy in entry.short]
SHORT += [Case("fsdp", name, "float32") for name in ("odd_buffers", "precise_block")]
# Ranks that use other parameters than the others, in some steps, or never; a batch norm of all ranks' samples.
SHORT += [Case(s, "skipped_experts", key="find_unused_parameters") for s in ("ddp", "fsdp")]
SHORT += [Case("ddp", "unused_pooler", key="find_unused_parameters")]
SHORT += [Case("fsdp", "batch_norm", key="sync_batch_norm")]
SHORT += [Case("zero3", "batch_norm", key="sync_batch_norm")]
# Its ranks have other samples, so statistics that a step does not share, or a resume not restore, differ.
SHORT += [Case("fsdp", "averaging_chain", resumed=True), Case("pp", "averaging_chain")]
LONG = [Case(strategy, name, resumed=True) for name, entry in MODELS.items() for strategy in entry.long]
LONG += [Case(s, "batch_norm", key="sync_batch_norm", resumed=True) for s in ("ddp", "zero1")]
LONG += [Case(s, "averaging_chain", resumed=True) for s in ("pp_zbv", "hsdp", "fsdp_pp")]


@pytest.fixture(scope="module", autouse=True)
def _registered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "names", registry.names)
        foreign.register()
        yield


@pytest.fixture(scope="module")
def results(request, server, tmp_path_factory, tiny_data):
    """Folder with the trainings of the cases."""
    data = tmp_path_factory.mktemp("data")
    group = Group(server, tmp_path_factory.mktemp("foreign"), data)
    cases = chosen(request)
    for name in {case.model for case in cases}:
        (data / name).symlink_to(tiny_data / foreign.DATA)
    group.train((case.name, case.run()) for case in cases)
    group.train((f"{case.name}-resumed", case.run(), case.name) for case in cases if case.resumed)
    return group.folder


PLAIN = {}


def plain(run, folder):
    """The plain training of a run, computed once for all strategies of its dtype."""
    key = run.workload, run.recipe.dtype
    if key not in PLAIN:
        PLAIN[key] = foreign.plain_training(run, folder)
    return PLAIN[key]


@with_marks([*SHORT, *LONG], LONG.__contains__)
def test_equals_plain_pytorch(results, case, tiny_data):
    """In losses, norms and the weights that it leaves, each in its own dtype; what is not trained exactly."""
    folder, run = results / case.name, case.run()
    weights = load_file(folder / "model.safetensors")
    if case.equal:
        expected = plain(run, tiny_data / foreign.DATA)
        pairs = list(zip(steps(folder), expected["steps"], strict=True))
        test = evaluate_whole(run, tiny_data / foreign.DATA, folder / "model.safetensors").loss
        apart = {
            "loss": worst(actual["loss"] / step["loss"] - 1 for actual, step in pairs),
            "norm": worst(actual["grad_norm"] / step["grad_norm"] - 1 for actual, step in pairs),
            "test": worst([test / expected["test"] - 1]),
        }
        within = dict.fromkeys(apart, 1e-10) if case.native else {"loss": 5e-6, "norm": 5e-6, "test": 1e-4}
        assert {key: value for key, value in apart.items() if not value <= within[key]} == {}
        check_weights(results, case, expected["network"])
    if case.model == "averaging_chain":
        check_statistics(case, weights)
    if case.resumed:
        check_resumed(folder, results / f"{case.name}-resumed")


def check_weights(results, case, network):
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    before = load_file(results / f"{case.model}-{case.run().recipe.dtype}.safetensors")
    actual = load_file(results / case.name / "model.safetensors")
    expected = {name: value for name, value in network.state_dict().items() if isinstance(value, torch.Tensor)}
    for name, value in actual.items():
        whole = expected.pop(name)
        assert value.dtype == whole.dtype, name
        assert value.shape == whole.shape, name
        # What a forward pass computed has roundings, like what is trained.
        computed = value.is_floating_point() and not torch.equal(before[name], whole)
        if name not in trained and not computed:
            torch.testing.assert_close(value, whole, rtol=0, atol=0)
        else:
            size = 1e-10 if case.native else 1e-5
            assert float((value - whole).abs().max()) <= size * float(whole.abs().max()), name
    assert not {*expected} & {name for name, _ in network.named_parameters()}, "all but other names of tied weights"


def check_statistics(case, weights):
    """A stage counts the micro-batches that it trains on, not the pass with which PyTorch infers a pipeline's shapes,
    on uninitialized inputs.
    """
    micro_batches = case.run().options.n_microbatches if case.run().mesh.pipelined else 1
    counts = [int(weights[f"layers.{number}.norm.num_batches_tracked"]) for number in range(4)]
    assert counts == [4 * micro_batches] * 4
    assert all(float(weights[f"layers.{number}.norm.running_mean"].abs().max()) < 10 for number in range(4))


def check_resumed(whole, resumed):
    """Bitwise, from the checkpoint of step 2, which a run writes and reads under each engine."""
    assert [step["step"] for step in steps(resumed)] == [2, 3]
    for key in ("loss", "grad_norm"):
        assert [step[key] for step in steps(resumed)] == [step[key] for step in steps(whole)[2:]]
    ours, expected = (json.loads((path / "train.json").read_text())["validation_loss"] for path in (resumed, whole))
    assert ours == expected, "computed by all ranks, each with its own buffers"
    ours, expected = (load_file(path / "model.safetensors") for path in (resumed, whole))
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)

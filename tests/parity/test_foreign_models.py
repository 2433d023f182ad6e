"""Models as other people write them, equal to plain PyTorch on one device: what a training leaves and resumes with.

That the others are refused tests/unit/test_contents.py shows.
"""

import json
from dataclasses import dataclass

import cases
import foreign
import pytest
import torch
from cases import chosen, parametrized
from foreign import MODELS
from group import Group, outside, steps, worst
from safetensors.torch import load_file

from shardlab.train.evaluation import evaluate_whole

pytestmark = pytest.mark.timeout(2400)  # the first test waits for the trainings of all
MIXED = (("global_batch_size", 4),)
"""Recipe of models with batch norm: one takes no single sample, which 5 would leave a rank."""
SYNCED = (*MIXED, ("sync_batch_norm", True))


@dataclass(frozen=True)
class Case(cases.Case):
    """One whose workload is a model of foreign.py."""

    option: str = ""
    """Of the strategy, that makes it equal."""
    resumed: bool = False
    """It also stops after two steps, and goes on."""

    def run(self):
        recipe = dict(self.recipe) | ({"checkpoint_interval_steps": 2} if self.resumed else {})
        run = foreign.run_of(self.workload, self.strategy, dtype=self.dtype, **recipe)
        options = {self.option: True} if self.option else {}
        return run.model_copy(update={"options": run.options.model_copy(update=options)})


def averaging(strategy, **more):
    """What it computes depends on its micro-batches: it equals no other training."""
    return Case(strategy, "averaging_chain", MIXED, **more)


CASES = [Case(strategy, name) for name, entry in MODELS.items() for strategy in entry.short]
CASES += [Case("fsdp", name, dtype="float32") for name in ("odd_buffers", "precise_block")]
# Ranks that use other parameters than the others, in some steps, or never; a batch norm of all ranks' samples.
CASES += [Case("ddp", name, option="find_unused_parameters") for name in ("skipped_experts", "unused_pooler")]
CASES += [Case(s, "batch_norm", SYNCED) for s in ("fsdp", "zero3")]
# Its ranks have other samples, so statistics that a step does not share, or a resume not restore, differ.
CASES += [averaging("fsdp", resumed=True), averaging("pp")]
CASES += [Case(strategy, name, resumed=True, long=True) for name, entry in MODELS.items() for strategy in entry.long]
CASES += [Case(s, "batch_norm", SYNCED, resumed=True, long=True) for s in ("ddp", "zero1")]
CASES += [averaging(s, resumed=True, long=True) for s in ("pp_zbv", "hsdp", "fsdp_pp")]


@pytest.fixture(scope="module")
def results(request, server, tmp_path_factory, tiny_data):
    """Folder with the trainings of the cases."""
    data = tmp_path_factory.mktemp("data")
    group = Group(server, tmp_path_factory.mktemp("foreign"), data)
    found = chosen(request)
    for name in {case.workload for case in found}:
        (data / name).symlink_to(tiny_data / foreign.DATA)
    group.train((case.name, case.run()) for case in found)
    group.train((f"{case.name}-resumed", case.run(), case.name) for case in found if case.resumed)
    return group.folder


PLAIN = {}


def plain(run, folder):
    """The plain training of a run, computed once for all strategies of its dtype."""
    key = run.workload, run.recipe.dtype
    if key not in PLAIN:
        PLAIN[key] = foreign.plain_training(run, folder)
    return PLAIN[key]


@parametrized(CASES)
def test_equals_plain_pytorch(results, case, tiny_data):
    """In losses, norms and the weights that it leaves, each in its own dtype; what is not trained exactly."""
    folder, run = results / case.name, case.run()
    if case.workload != "averaging_chain":
        expected = plain(run, tiny_data / foreign.DATA)
        pairs = list(zip(steps(folder), expected["steps"], strict=True))
        test = evaluate_whole(run, tiny_data / foreign.DATA, folder / "model.safetensors").loss
        apart = {
            "loss": worst(actual["loss"] / step["loss"] - 1 for actual, step in pairs),
            "norm": worst(actual["grad_norm"] / step["grad_norm"] - 1 for actual, step in pairs),
            "test": worst([test / expected["test"] - 1]),
        }
        assert outside(apart, native=case.native) == {}
        check_weights(results, case, expected["network"])
    else:
        check_statistics(case, load_file(folder / "model.safetensors"))
    if case.resumed:
        check_resumed(folder, results / f"{case.name}-resumed")


def check_weights(results, case, network):
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    before = load_file(results / f"{case.workload}-{case.dtype}.safetensors")
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

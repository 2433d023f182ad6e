"""Tasks: losses are sums over real targets, independent of padding and of how a batch is split."""

import numpy as np
import pytest
import torch

from helpers.common import TINY, save_initial, tiny_run, with_weights
from shardlab.errors import UserError
from shardlab.models._chain import Segment
from shardlab.models._layers import Attention
from shardlab.models._losses import TARGETS
from shardlab.models._sequence import SequenceSplit
from shardlab.parallel import context
from shardlab.runtime import tasks
from shardlab.train import evaluation

CPU = torch.device("cpu")


def loaded(workload, tiny_data, dtype=torch.float64):
    run = tiny_run(workload, dtype=str(dtype).removeprefix("torch."))
    torch.manual_seed(0)
    return tasks.load(run.task, tiny_data / workload, dtype, CPU), with_weights(run)


def loss_sum(task, model, indices, rows=None):
    micro = task.micro_batch("train", indices, rows)
    return float(task.counted_loss(task.outputs(model, micro.batch), micro).detach())


@pytest.mark.parametrize("workload", TINY)
def test_loss_sum_and_target_count_do_not_depend_on_how_a_batch_is_cut(workload, tiny_data):
    task, model = loaded(workload, tiny_data)
    batch = np.arange(7)
    whole = pytest.approx(loss_sum(task, model, batch), rel=1e-12)
    # Two of nine parts are empty; rows fill parts up with samples that do not count.
    for count, rows in ((3, 4), (9, None)):
        parts = np.array_split(batch, count)
        assert sum(loss_sum(task, model, part, rows) for part in parts) == whole
        assert sum(task.targets("train", part) for part in parts) == task.targets("train", batch)


@pytest.mark.parametrize("workload", ["llama2", "xsum"])
def test_in_chunks_the_loss_is_the_same_and_the_logits_are_never_whole(workload, tiny_data):
    whole, model = loaded(workload, tiny_data)
    run = tiny_run(workload, dtype="float64", loss_chunks=3)
    tasks.check_model(run, model)
    chunked = tasks.task_for(run, tiny_data / workload, CPU)
    expected, lengths, gradients = [], [], []
    for task in (whole, chunked):
        hook = model.output.register_forward_hook(lambda _module, _inputs, logits: lengths.append(logits.shape[1]))
        micro = task.micro_batch("train", np.arange(3), rows=5)
        loss = task.counted_loss(task.outputs(model, micro.batch), micro)
        loss.backward()
        hook.remove()
        expected.append(float(loss.detach()))
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        model.zero_grad()
    assert expected[0] == pytest.approx(expected[1], rel=1e-14)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-12, atol=1e-14)
    all_of_them, *chunks = lengths
    forward, backward = chunks[:3], chunks[3:]
    assert sum(forward) == sum(backward) == all_of_them
    assert max(chunks) == -(-all_of_them // 3)


def test_sequences_are_filled_up_and_every_rank_has_another_part(tiny_data):
    task, _ = loaded("xsum", tiny_data)
    whole = task.batch("train", np.arange(3))
    for head_tail in (False, True):
        splits = [SequenceSplit(7, rank, head_tail=head_tail) for rank in range(7)]
        parts = [task.micro_batch("train", np.arange(3), sequence=split).batch for split in splits]
        for name, fill in (task.sequences | task.whole_sequences).items():
            together = splits[0].in_order(torch.cat([part[name] for part in parts], 1), 1)
            found = together if name in task.sequences else parts[0][name]
            length = whole[name].shape[1]
            assert found[:, :length].equal(whole[name])
            assert found.shape[1] % splits[0].count == 0
            assert found.shape[1] > length, "the length is not a multiple of the number of pieces"
            assert (found[:, length:] == fill).all()
            positions = torch.cat([split.positions(found.shape[1] // 7, CPU) for split in splits])
            assert splits[0].in_order(positions, 0).equal(torch.arange(found.shape[1])) or name in task.whole_sequences
        assert not parts[0]["mask"][:, whole["mask"].shape[1] :].any(), "what fills up is never attended to"


def test_the_rank_with_the_class_token_has_the_targets(tiny_data):
    task, _ = loaded("vit", tiny_data)
    whole = task.batch("train", np.arange(3))
    parts = [task.micro_batch("train", np.arange(3), sequence=SequenceSplit(3, rank)) for rank in range(3)]
    assert all(part.batch["images"].equal(whole["images"]) for part in parts)
    assert parts[0].batch["labels"].equal(whole["labels"])
    assert [int(task.targets_in(part.counted)) for part in parts] == [3, 0, 0]
    logits = torch.randn(3, 10, dtype=torch.float64, requires_grad=True)
    loss = task.counted_loss(logits, parts[1])
    loss.backward()
    assert float(loss.detach()) == 0
    assert not logits.grad.any(), "a loss without targets is 0 with a gradient of 0"


@pytest.mark.parametrize("count", [2, 3, 6])
def test_class_token_and_patches_are_split_and_what_fills_them_up_is_no_key(count, tiny_data):
    _, model = loaded("vit", tiny_data)
    images = torch.randn(2, 1, 28, 28, dtype=torch.float64)
    whole = model._embed(images)
    assert whole.shape[1] % count, "no number of pieces divides the length"
    splits = [SequenceSplit(count, rank, head_tail=True) for rank in range(count)]
    parts, masks = [], []
    for split in splits:
        split.assign(model)
        parts.append(model._embed(images))
        masks.append(model._layer(lambda _, mask: mask, parts[-1]))
    together = splits[0].in_order(torch.cat(parts, 1), 1)
    assert together[:, : whole.shape[1]].equal(whole)
    assert {len(mask.flatten()) for mask in masks} == {together.shape[1]}
    assert {int(mask.sum()) for mask in masks} == {whole.shape[1]}, "keys that fill up are never attended to"


class Unsplit(torch.nn.Module):
    """Attends like the workloads' models, but does not know which positions a rank has."""

    def __init__(self, **layers):
        super().__init__()
        self.attention = Attention(4, 2)
        for name, layer in layers.items():
            self.add_module(name, layer)


@pytest.mark.parametrize(
    ("workload", "model", "message"),
    [
        ("mlp", Unsplit(), "task regression does not name its `sequences`; name them, or remove the key"),
        ("mnist", torch.nn.Linear(1, 1), "does not attend through models/_layers.py; use its Attention, or remove"),
        ("mnist", Unsplit(), "model cnn does not split the positions that it makes of a sample; give it a `sequence`"),
        (
            "llama2",
            Unsplit(window=torch.nn.Conv1d(4, 4, 3)),
            "window of model llama is a Conv1d, whose output at a pos",
        ),
        ("llama2", Unsplit(state=torch.nn.GRU(4, 4)), "state of model llama is a GRU, whose output at a position depe"),
    ],
)
def test_context_parallelism_needs_a_task_and_a_model_that_split_their_positions(workload, model, message, tiny_data):
    task, _ = loaded(workload, tiny_data)
    with pytest.raises(UserError, match=message):
        context.check(tiny_run(workload), task, model)


def test_a_model_that_gives_logits_alone_has_no_loss_in_chunks():
    run = tiny_run("llama2", loss_chunks=3)
    with pytest.raises(UserError, match="set it to 1"):
        tasks.check_model(run, torch.nn.Linear(1, 1))
    tasks.check_model(tiny_run("vit", loss_chunks=3), torch.nn.Linear(1, 1))  # of one target a sample
    model = with_weights(run)
    model.segments = lambda: [Segment((), model, (TARGETS,))]
    tasks.check_model(run, model)
    with pytest.raises(UserError, match=r"returns losses without it; set recipe.loss_chunks to 1"):
        tasks.check_model(tiny_run("llama2", loss_chunks=3, label_smoothing=0.1), model)


def test_a_model_must_tell_the_documents_of_a_row_apart(tiny_data):
    run = tiny_run("instruct")
    tasks.check_model(run, loaded("llama2", tiny_data)[1])
    with pytest.raises(UserError, match="attend take `positions`, as llama's do"):
        tasks.check_model(run, loaded("moe", tiny_data)[1])


def test_summaries_have_uneven_lengths_and_padding_is_no_target(tiny_data):
    task, model = loaded("xsum", tiny_data)
    indices = np.arange(task.samples("train"))
    counts = [task.targets("train", indices[i : i + 1]) for i in indices]
    assert len(set(counts)) > 3
    batch = task.batch("train", indices)
    assert int((batch["targets"] != tasks.IGNORE).sum()) == sum(counts) < batch["targets"].numel()
    # The mean of the samples' means, the sources' mistake, is another number.
    mean_of_means = np.mean([loss_sum(task, model, indices[i : i + 1]) / counts[i] for i in indices])
    assert abs(mean_of_means / (loss_sum(task, model, indices) / sum(counts)) - 1) > 1e-6, "rounding is 1e-15"


def test_accuracy_and_rouge_of_a_perfect_model(tiny_data):
    task, _ = loaded("vit", tiny_data)
    batch = task.batch("test", np.arange(task.samples("test")))
    perfect = torch.nn.functional.one_hot(batch["labels"], 10).double()
    assert task.score(torch.nn.Identity(), perfect, batch) == task.samples("test")

    task, _ = loaded("xsum", tiny_data)
    batch = task.batch("test", np.arange(task.samples("test")))

    class Perfect(torch.nn.Module):
        def forward(self, document, summary, mask):
            targets = batch["targets"].clamp(min=0)
            position = min(summary.shape[1], targets.shape[1]) - 1
            return torch.nn.functional.one_hot(targets[:, : position + 1], 1024).double()

    assert task.score(Perfect(), torch.empty(0), batch) == pytest.approx(task.samples("test"))


@pytest.mark.parametrize("workload", TINY)
def test_test_loss_is_exact_however_the_split_is_batched(workload, tiny_data, tmp_path):
    run = tiny_run(workload, dtype="float64")
    torch.manual_seed(0)
    save_initial(run, tmp_path / "weights")

    def report(eval_batch_size):
        recipe = run.recipe.model_copy(update={"eval_batch_size": eval_batch_size})
        changed = run.model_copy(update={"recipe": recipe})
        return evaluation.evaluate_whole(changed, tiny_data / workload, tmp_path / "weights")

    whole, segments = report(64), report(1)
    assert (
        whole.samples
        == segments.samples
        == tasks.load(run.task, tiny_data / workload, torch.float64, CPU).samples("test")
    )
    assert whole.targets == segments.targets
    assert segments.loss == pytest.approx(whole.loss, rel=1e-12)

"""traindiff on dumps of other trainers: names, shards, steps and dtypes."""

import re
from pathlib import Path

import pytest
import torch
from tiny_dumps import DOWN, GRADIENTS, TENSORS, UP, dump, times

from traindiff import command_line, read_dumps


def test_equal_dumps_have_status_0_and_different_ones_status_1(compare):
    same = {"gradients-0": TENSORS, "gradients-1": times(2)}
    status, page = compare(same, same)
    assert status == 0
    assert "**Nothing differs in steps 0-1.**" in page
    assert "| gradient | 2 | 0.0e+00 |" in page
    status, page = compare({"gradients-0": times(4)}, {"gradients-0": TENSORS}, "--ranks", "dp=4")
    assert status == 1
    assert "; cause: a factor of 4, the number of ranks along dp or the number of ranks.**" in page


def test_a_factor_is_a_number_rather_than_the_square_of_another(compare):
    """Two ranks with four micro-batches each."""
    _, page = compare({"gradients": times(4)}, {"gradients": TENSORS}, "--ranks", "micro-batches=4", "--ranks", "dp=2")
    assert "; cause: a factor of 4, the number of micro-batches.**" in page
    page = compare({"gradients": times(16)}, {"gradients": TENSORS}, "--ranks", "dp=4")[1]
    assert "; cause: a factor of 16, the square of the number of ranks along dp" in page


def test_optimizer_states_of_other_parameters_are_an_error(compare, capsys):
    states = [{f"{prefix}up.weight//exp_avg": UP} for prefix in ("model.", "")]
    assert compare({"optimizer-0": states[0]}, {"optimizer-0": states[1]})[0] == 2


def test_a_file_without_tensors_is_an_error_that_says_so(compare):
    status, error = compare({"weights-0": TENSORS, "gradients-0": {}}, {"weights-0": TENSORS, "gradients-0": TENSORS})
    assert status == 2
    assert "other has no tensors in step0/gradients" in error


def test_what_the_trainer_wrote_of_its_ranks_and_micro_batches_names_factors(compare, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/step-0.json").write_text('{"world_size": 2, "micro_batches": 8}')
    for factor, name in ((2, "the number of ranks"), (8, "the number of micro-batches")):
        page = compare({"gradients-0": times(factor)}, {"gradients-0": TENSORS})[1]
        assert f"a factor of {factor}, {name}.**" in page
        assert "--ranks" not in page


def test_the_page_can_be_written_to_a_file(compare, tmp_path):
    status, printed = compare({"gradients": times(4)}, {"gradients": TENSORS}, "--output", tmp_path / "page.md")
    assert (status, printed.count("\n")) == (1, 1)
    assert printed.strip() in (tmp_path / "page.md").read_text()


def test_names_are_mapped_and_shards_joined_in_the_order_of_the_ranks(compare):
    parts = 8
    other = {
        f"step0/gradients.tp{rank}": {
            "module.up.linear.weight": UP.chunk(parts)[rank],
            "module.down.linear.weight": TENSORS["down.weight"].chunk(parts, 1)[rank],
            "module.norm": torch.ones(3),
        }
        for rank in range(parts)
    }
    reference = {"step0/gradients": {f"_orig_mod.{name}": value for name, value in TENSORS.items()}}
    reference["step0/gradients"]["norm"] = torch.ones(3)
    rules = ["--rename", r"^module\.(?=\w)=", "--rename", r"\.linear=", "--merge", r"up\..*=0", "--merge", "down.*=1"]
    status, page = compare(other, reference, *rules)
    assert status == 0, page
    assert "| 0 | gradient | 3 | 0.0e+00 |" in page


def test_rank_10_follows_rank_9(compare):
    value = torch.arange(24.0)
    other = {f"gradients.rank{rank}": {"x": value[2 * rank : 2 * rank + 2]} for rank in range(12)}
    assert compare(other, {"gradients": {"x": value}}, "--merge", "x=0")[0] == 0


def test_a_wrong_shard_is_named_by_its_rows(compare):
    wrong = UP.clone()
    wrong[4:] *= 0.5
    other = {f"gradients.tp{rank}": {"up.weight": wrong.chunk(2)[rank]} for rank in range(2)}
    reference = {"gradients": {"up.weight": UP}}
    _, page = compare(other, reference, "--merge", "up.weight=0", "--ranks", "tp=2")
    assert (
        "cause: a factor of 0.5, 1 / the number of ranks along tp or 1 / the number of ranks (up.weight[4-7] along "
        in page
    )


def test_tensors_can_be_left_out(compare):
    other = {"gradients": {**TENSORS, "qkv.weight": torch.ones(2)}}
    status, page = compare(other, {"gradients": TENSORS}, "--skip", "qkv.*")
    assert status == 0
    assert "Left out (--skip): 1 tensors of" in page


def test_steps_that_only_one_has_are_named_and_the_others_compared(compare):
    reference = {f"gradients-{step}": TENSORS for step in range(4)}
    status, page = compare({name: reference[name] for name in ("gradients-0", "gradients-1")}, reference)
    assert status == 0
    assert "**Nothing differs in steps 0-1.**" in page
    assert re.search(r"Steps 2-3 are only in `\S+/reference` and not compared", page)


def test_updates_are_compared_where_weights_before_the_step_are_known(compare):
    start, step = {"initial": TENSORS}, times(1.25)
    status, page = compare(start | {"weights-0": times(1.5)}, start | {"weights-0": step}, "--ranks", "dp=2")
    assert status == 1
    assert "First difference: step 0, update (2 of 2" in page
    assert "; causes that fit equally: updates times 2, or decay: 0.25 times the weights of all parameters.**" in page


def test_weights_alone_are_compared_themselves(compare):
    status, page = compare({"weights-3": times(1.1)}, {"weights-3": TENSORS})
    assert status == 1
    assert "First difference: step 3, weights (2 of 2" in page


def test_a_small_update_of_large_float32_weights_is_not_more_precise_than_they_are(compare):
    weights = {"x": torch.full((4,), 100.0)}
    after = [{"x": torch.nextafter(weights["x"] - 1e-3, torch.tensor(towards))} for towards in (0.0, 200.0)]
    assert not torch.equal(after[0]["x"], after[1]["x"])
    status, _ = compare({"initial": weights, "weights": after[0]}, {"initial": weights, "weights": after[1]})
    assert status == 0


@pytest.mark.parametrize(("factor", "status"), [(1, 0), (2, 1)])
def test_bf16_is_compared_with_its_own_limit(compare, factor, status):
    low = {name: (factor * value).bfloat16() for name, value in TENSORS.items()}
    found, page = compare({"gradients": low}, {"gradients": TENSORS}, "--ranks", "dp=2")
    assert found == status
    assert "The gradients are BF16 against F32: the coarser dtype of a tensor sets its limit." in page
    if status:
        assert "; cause: a factor of 2, the number of ranks along dp" in page


def test_one_tensor_in_bf16_loosens_no_other(compare):
    reference = TENSORS | {"down.weight": TENSORS["down.weight"].bfloat16()}
    assert compare({"gradients": times(1.01)}, {"gradients": reference})[1].count("gradient (1 of 2, first up.weight)")


def test_a_reference_of_zeros_has_no_factor(compare):
    _, page = compare({"gradients": TENSORS}, {"gradients": TENSORS | {"up.weight": 0 * UP}})
    assert "- 0 in the reference: up.weight." in page


def test_weights_before_the_first_step_alone(compare):
    assert compare({"initial": TENSORS}, {"initial": TENSORS})[0] == 0
    assert (
        "First difference: step 0, initial weights (2 of 2" in compare({"initial": times(2)}, {"initial": TENSORS})[1]
    )


def test_float32_files_of_a_training_in_bf16(compare):
    low = {name: value.bfloat16().float() for name, value in TENSORS.items()}
    assert compare({"gradients": low}, {"gradients": TENSORS})[0] == 1
    assert compare({"gradients": low}, {"gradients": TENSORS}, "--dtype", "bfloat16")[0] == 0


def test_a_twin_tells_rounding_from_a_mistake(compare, tmp_path):
    twin = dump(tmp_path / "twin", {"gradients": times(1.01)})
    status, page = compare({"gradients": times(1.05)}, {"gradients": TENSORS}, "--twin", twin)
    assert status == 0
    assert "ten times the distance between the reference and its twin" in page
    assert compare({"gradients": times(1.5)}, {"gradients": TENSORS}, "--twin", twin)[0] == 1


@pytest.mark.parametrize(
    ("value", "sides", "says"),
    [
        ("nan", (0,), "has values that are not a number: 1 of 32, in this training."),
        ("nan", (1,), "has values that are not a number: 1 of 32, in the reference."),
        ("inf", (0, 1), "has 1 values that are infinite, or not a number, in both."),
    ],
)
def test_nan_and_inf_are_findings(compare, value, sides, says):
    wrong = {**TENSORS, "up.weight": UP.clone()}
    wrong["up.weight"][2, 1] = float(value)
    both = [{"gradients": wrong if side in sides else TENSORS} for side in (0, 1)]
    status, page = compare(*both)
    assert status == len({0, 1}.difference(sides))
    assert f"up.weight {says}" in page


def test_optimizer_state_and_clipped_gradients(compare):
    same = {"gradients-0": TENSORS, "clipped-0": times(0.1)}
    state = {"up.weight//exp_avg": UP}
    _, page = compare(same | {"optimizer-0": times(0.5, state)}, same | {"optimizer-0": state})
    assert "First difference: step 0, optimizer state (up.weight//exp_avg)" in page
    _, page = compare(same | {"clipped-0": TENSORS}, same)
    assert "First difference: step 0, clipped gradient (2 of 2, first down.weight); cause: no clipping.**" in page


def test_clipped_gradients_without_those_before_clipping(compare):
    _, page = compare({"clipped-0": times(2)}, {"clipped-0": TENSORS})
    assert "First difference: step 0, clipped gradient (2 of 2, first down.weight); cause: a factor of 2.**" in page


@pytest.mark.parametrize("key", ["exp_avg_sq", "row"])
def test_optimizer_state_that_weights_do_not_explain(compare, key):
    state = {"up.weight//exp_avg": UP, f"up.weight//{key}": DOWN[0].clone()}
    wrong = state | {f"up.weight//{key}": UP[0].clone()}
    _, page = compare({"initial": TENSORS, "optimizer": wrong}, {"initial": TENSORS, "optimizer": state})
    assert f"First difference: step 0, optimizer state (1 of 2, first up.weight//{key})" in page


def test_empty_tensors_of_several_files(compare):
    empty = {"gradients.rank0": {"x": UP[:0]}, "gradients.rank1": {"x": UP[:0]}}
    assert compare(empty, {"gradients": {"x": UP[:0]}})[0] == 0


def test_the_imaginary_part_counts(compare):
    values = [{"gradients": {"x": torch.complex(UP, sign * DOWN)}} for sign in (1, -1)]
    assert compare(*values)[0] == 1


def test_an_infinite_tensor_hides_no_other_one(compare):
    reference = TENSORS | {"up.weight": UP / 0}
    _, page = compare({"gradients": times(2)}, {"gradients": reference})
    assert "gradient (2 of 2" in page


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_twin_that_is_not_finite_excuses_nothing(compare, tmp_path, value):
    twin = dump(tmp_path / "twin", {"gradients": times(float(value))})
    assert compare({"gradients": times(3)}, GRADIENTS, "--twin", twin)[0] == 1


def test_the_step_in_the_name_of_a_single_file(tmp_path, capsys):
    path = dump(tmp_path, {"gradients-3": TENSORS}) / "gradients-3.safetensors"
    assert command_line.main([str(path), str(path)]) == 0
    assert "Nothing differs in step 3." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("gradients-0", "step0/gradients"),
        ("step12/weights.rank3", "step12/weights"),
        ("step-7/clipped", "step7/clipped"),
        ("run-3/gradients-2", "step2/gradients"),
        ("gradients-1.pp0.tp1", "step1/gradients"),
        ("checkpoint-10/model-00001-of-00002", "step9/weights"),
        ("checkpoint-1/model", "step0/weights"),
        ("checkpoint-0/model", "initial"),
        ("model", "step0/weights"),
        ("initial.tp0", "initial"),
    ],
)
def test_names_of_files(path, name):
    assert read_dumps._file(Path(f"{path}.safetensors")) == name


@pytest.mark.parametrize("prefix", ["module.", "module.module.", "_orig_mod.module.", "module._orig_mod."])
def test_the_prefix_of_ddp_is_removed(compare, prefix):
    wrapped = {"gradients-0": {f"{prefix}{name}": value for name, value in TENSORS.items()}}
    assert compare(wrapped, {"gradients-0": TENSORS})[0] == 0
    assert compare(wrapped, {"gradients-0": {"up.weight": UP}}, "--skip", r"(module\.)+down.*")[0] == 0
    mixed = {"gradients-0": {"module.up.weight": UP, "down.weight": DOWN}}
    assert compare(mixed, mixed)[0] == 0


def test_buffers_are_not_updated_by_an_optimizer(compare):
    def with_buffers(calls):
        mean = {"norm.running_mean": calls * torch.ones(4), "norm.num_batches_tracked": torch.tensor(calls)}
        return {"initial": TENSORS | {name: 0 * value for name, value in mean.items()}, "weights-0": times(2) | mean}

    assert "step 0, buffers (2 of 2, first norm." in compare(with_buffers(2), with_buffers(1))[1]

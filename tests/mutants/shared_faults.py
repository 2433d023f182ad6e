"""In all strategies: the loss, the optimizer, the best weights, the summary."""

from fault import (
    CHECKPOINT,
    EVALUATION,
    LOSSES,
    MODELS,
    MUON,
    NATIVE,
    RECIPE,
    RESUMING,
    STEP,
    Fault,
    S,
    at,
    parity,
    reference,
)

CONTINUED = at("parity/test_resume", "test_ends_where_an_uninterrupted_run_ends[single-fsdp-llama2]")

FAULTS = [
    # What the loss is.
    Fault(
        "labels are smoothed over the rank's part of a split vocabulary",
        LOSSES,
        "part.sum(1) / logits.shape[1]",
        "part.mean(1)",
        parity("tp_loss-llama2-smoothed-float64"),
    ),
    Fault(
        "the test loss is a mean of the batches' means",
        EVALUATION,
        "loss += float(task.loss(outputs, batch))",
        "loss += float(task.loss(outputs, batch)) / len(outputs) * run.recipe.eval_batch_size",
        at("unit/test_tasks", "test_test_loss_is_exact_however_the_split_is_batched"),
    ),
    Fault(
        "micro-batches averaged, whatever their size",
        STEP,
        "world.dims.loss_parts / step.targets, last",
        "step.samples / step.targets / len(step.micro_batches) / (micro.count or 1), last",
        reference("mlp"),
    ),
    # How the optimizer is driven.
    Fault("betas ignored", RECIPE, 'exclude={"name"', 'exclude={"betas", "name"', reference("xsum")),
    Fault(
        "Muon orthogonalizes shards (DeepSpeed issue 8437)",
        MUON,
        "placement.dim >= stacked",
        "placement.dim > 1",
        parity("fsdp-llama2-muon-float64"),
    ),
    # The average of the weights.
    Fault(
        "gradients are never cleared",
        NATIVE,
        "        self.average.update()\n        self.zero_grad()\n",
        "        self.average.update()\n",
        reference("mlp"),
    ),
    Fault(
        "only the last micro-batch's gradient counts",
        NATIVE,
        "            (loss * scale).backward()",
        "            self.optimizer.zero_grad()\n            (loss * scale).backward()",
        reference("mlp"),
    ),
    # What is kept.
    Fault(
        "a run resumes without the optimizer's state",
        RESUMING,
        '        _load(folder, "optimizer", tensors, world)\n',
        "",
        CONTINUED,
    ),
    Fault(
        "a run resumes one step too late", CHECKPOINT, '{"step": step, "best"', '{"step": step + 1, "best"', CONTINUED
    ),
    Fault(
        "a checkpoint of another configuration is taken",
        RESUMING,
        "if key is None and checkpoint.identity.numbers == start.identity.numbers:",
        "if key is None:",
        at("unit/test_checkpoints", "test_another_configuration_is_refused_with_its_key_or_begins_afresh"),
    ),
    # What the table says.
    Fault(
        "attention across the documents of a row",
        f"{MODELS}/_layers.py",
        "if documents is not None:",
        "if False:",
        reference("instruct"),
    ),
    Fault(
        "a batch made ahead is not waited for",
        f"{S}runtime/device.py",
        "        current.wait_event(done)\n",
        "",
        at("unit/test_device", "test_what_the_project_does_with_devices_on_simulated_ones"),
        error="never set one|wait for it first|record_stream",
    ),
    Fault(
        "runs of any seed have the same numbers",
        f"{S}settings/run_identity.py",
        "SIZE = (",
        'SIZE = ("seed", ',
        at("unit/test_run_identity", "test_a_run_s_numbers_do_not_depend_on_its_place"),
    ),
    Fault(
        "a script's weights may be NaN",
        f"{S}train/script_report.py",
        "not value.isfinite().all()",
        "False",
        at("unit/test_script_contract", "test_weights_that_break_the_contract_are_named"),
    ),
    Fault(
        "an edited report is taken",
        f"{S}records/reports.py",
        'if report.seal != digest({key: value for key, value in values.items() if key != "seal"}):',
        "if False:",
        at("unit/test_summary", "test_an_edited_report_is_no_figure_of_the_table"),
    ),
    Fault(
        "no gradient of the weights among the operations",
        f"{S}measure/flops.py",
        "return Flops(3 * forward,",
        "return Flops(2 * forward,",
        at("unit/test_flops", "test_linear_layers_compute_six_times_their_weights_a_sample"),
    ),
]

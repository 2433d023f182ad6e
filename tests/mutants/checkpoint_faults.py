"""Checkpoints, what a training resumes with, and when a run is given up."""

from fault import CHECKPOINT, RESUMING, Fault, S, at

MANIFEST, ATTEMPTS, EVALUATION = f"{S}records/manifest.py", f"{S}runs/attempts.py", f"{S}train/evaluation.py"
CHECKPOINTS = "unit/test_checkpoints"
RESUMED = at(CHECKPOINTS, "test_a_training_that_goes_on_has_the_best_weights_and_the_counts_of_before")
DUE = at(CHECKPOINTS, "test_when_a_checkpoint_is_due")
KEPT = at(CHECKPOINTS, "test_the_newest_is_taken_and_the_last_ones_are_kept")
ANOTHER = at(CHECKPOINTS, "test_another_configuration_is_refused_with_its_key_or_begins_afresh")
SYNCED = at("unit/test_files", "test_a_checkpoint_is_on_the_disk_before_it_has_its_name")

FAULTS = [
    # What a training resumes with.
    Fault("no best weights after a resume", RESUMING, "link(folder / BEST, output / BEST)", "pass", RESUMED),
    Fault("no best loss after a resume", RESUMING, '"best": checkpoint.best', '"best": start.best', RESUMED),
    Fault(
        "no skipped steps after a resume",
        RESUMING,
        '"skipped": checkpoint.skipped',
        '"skipped": start.skipped',
        RESUMED,
    ),
    Fault("a checkpoint without the best weights", CHECKPOINT, "link(self.output / BEST, new / BEST)", "pass", RESUMED),
    Fault(
        "a training goes on beyond its end",
        RESUMING,
        "if checkpoint.step > steps.count:",
        "if False:",
        at(CHECKPOINTS, "test_a_training_does_not_go_on_beyond_its_end"),
    ),
    Fault(
        "restart continues from the checkpoints",
        RESUMING,
        "for folder in [] if restart else world.gather",
        "for folder in world.gather",
        ANOTHER,
    ),
    Fault(
        "evaluation mode after a validation",
        EVALUATION,
        "    engine.train(True)\n",
        "",
        at("parity/test_dropout", "test_a_run_that_goes_on_draws_the_masks_of_one_that_did_not_stop"),
    ),
    # When, and how whole, a checkpoint is.
    Fault(
        "no validation where a training stops",
        f"{S}train/loop.py",
        "if step.validates:",
        "if step.validates and not deferred.flags.stop:",
        at(CHECKPOINTS, "test_a_stop_is_obeyed_and_loses_no_validation"),
    ),
    Fault(
        "a checkpoint that is due clears a request to stop",
        f"{S}train/loop.py",
        "stops = deferred.flags.stop and unfinished  #",
        "stops = False  #",
        at(CHECKPOINTS, "test_a_stop_is_obeyed_and_loses_no_validation"),
    ),
    Fault("a checkpoint a step too late", CHECKPOINT, "step % every == 0", "step % every == 1", DUE),
    Fault("checkpoint_interval_minutes are seconds", CHECKPOINT, "> 60 * minutes", "> minutes", DUE),
    Fault(
        "the clock of checkpoint_interval_minutes never begins anew",
        CHECKPOINT,
        "        self._last = time.monotonic()\n        if self.world.size",
        "        if self.world.size",
        DUE,
    ),
    Fault(
        "a checkpoint of weights that change while it is written",
        CHECKPOINT,
        'return value.detach().to("cpu", copy=True)',
        "return value.detach()",
        at(CHECKPOINTS, "test_a_checkpoint_is_of_the_moment_it_was_asked_for"),
    ),
    Fault(
        "files have their name before they are on the disk",
        f"{S}files.py",
        "            sync(temporary)\n",
        "",
        at("unit/test_files", "test_a_file_its_name_and_its_folder_are_brought_to_the_disk_in_this_order"),
    ),
    Fault("folders are not on the disk", f"{S}files.py", "    sync(folder)\n", "", SYNCED),
    # When a run is given up, and what is known of it.
    Fault(
        "what is left of a run is the whole of it",
        f"{S}runs/run_status.py",
        "(found.steps - found.step) * seconds",
        "found.steps * seconds",
        at("unit/test_watch", "test_a_run_that_is_trained_now"),
    ),
    # What killed processes leave.
    Fault(
        "weights that killed processes were writing stay",
        CHECKPOINT,
        "            manifest.sweep(output)\n",
        "            pass\n",
        at(CHECKPOINTS, "test_a_start_behind_the_last_step_measures_nothing_and_removes_what_kills_left"),
    ),
    # What a resume keeps of the files before.
    Fault(
        "earlier attempts that began later are forgotten",
        f"{S}train/metrics_log.py",
        'if record["kind"] == "attempt" or record["step"] < start]',
        'if record["step"] < start]',
        at("unit/test_files", "test_a_run_that_resumes_keeps_all_earlier_attempts"),
    ),
    Fault(
        "best weights of steps that were lost",
        RESUMING,
        "        (output / BEST).unlink(missing_ok=True)\n        if BEST in checkpoint.files:",
        "        if BEST in checkpoint.files and not (output / BEST).exists():",
        RESUMED,
    ),
    Fault(
        "a lock keeps the name of a holder that has ended",
        f"{S}files.py",
        "        finally:\n            file.truncate(0)",
        "        finally:\n            pass",
        at("unit/test_files", "test_a_lock_names_its_holder_while_it_is_held"),
    ),
    # Validation.
    Fault(
        "the best loss is rounded",
        CHECKPOINT,
        "            self.best = loss\n",
        "            self.best = round(loss, 6)\n",
        at(CHECKPOINTS, "test_the_best_weights_are_of_the_first_lowest_loss"),
    ),
    Fault(
        "a validation loss that is not finite goes on",
        CHECKPOINT,
        '        check_finite(self.run, "validation", loss)\n',
        "",
        at(CHECKPOINTS, "test_a_validation_loss_that_is_not_finite_ends_the_training_with_a_sentence"),
        error="not JSON compliant",
    ),
]

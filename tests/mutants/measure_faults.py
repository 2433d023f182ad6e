"""Measurements, plans, and the figures in the reports."""

from fault import Fault, S, at, parity

RECORDS, PLAN, PLANS = f"{S}records/train_report.py", f"{S}records/plan.py", f"{S}report/plan_table.py"
COLLECTIVES, TRAFFIC, REACHED = (f"{S}measure/{name}.py" for name in ("collectives", "traffic", "device_benchmark"))
TIMES = at("unit/test_records", "test_times_are_those_of_the_steps_behind_the_warm_up")
BANDWIDTHS = at("unit/test_collectives", "test_bandwidths_are_of_the_slowest_rank")
FIGURES = at("unit/test_flops", "test_figures_of_a_device_are_those_of_the_slowest_rank_and_of_a_site_s_file")
ATTEMPTS = at("unit/test_records", "test_a_report_counts_the_steps_of_all_attempts")
SIMULATE = f"{S}plan/simulate.py"
STATES = at("unit/test_plan", "test_deepspeed_s_states_by_hand")
BUCKETS = at("unit/test_plan", "test_ddp_s_buckets_are_always_there")
UPDATE = at("unit/test_plan", "test_the_update_reads_and_writes_the_state_of_the_fullest_rank")

FAULTS = [
    # train.json.
    Fault(
        "the MFU of one device, whatever the ranks",
        RECORDS,
        "/ (peak * run.world_size * run.devices_per_rank))",
        "/ peak)",
        at("unit/test_records", "test_the_mfu_is_of_all_devices"),
    ),
    Fault(
        "a bubble of (p - 1) / m",
        f"{S}settings/pipeline_schedules.py",
        "(ranks - 1) / (segments + ranks - 1)",
        "(ranks - 1) / segments",
        at("unit/test_records", "test_the_bubble_of_a_pipeline"),
    ),
    Fault("the 95th percentile is the median", RECORDS, "round(0.95 * last)", "round(0.5 * last)", TIMES),
    Fault(
        "twice the throughput",
        RECORDS,
        'sum(record["samples"] for record in steps) / sum(seconds)',
        '2 * sum(record["samples"] for record in steps) / sum(seconds)',
        TIMES,
    ),
    Fault(
        "times of the warm-up, too", RECORDS, "_step_statistics(steps[WARMUP_STEPS:])", "_step_statistics(steps)", TIMES
    ),
    Fault(
        "the validation loss after the first epoch",
        RECORDS,
        'if record["kind"] == "validation"][-1]',
        'if record["kind"] == "validation"][0]',
        TIMES,
    ),
    Fault("no step is ever lost", RECORDS, '"lost_steps": _lost(attempts)', '"lost_steps": 0', ATTEMPTS),
    Fault(
        "the time of earlier attempts is forgotten",
        RECORDS,
        '+= sum(each["seconds"] or 0.0 for each in steps if each["step"] < started)',
        "+= 0",
        ATTEMPTS,
    ),
    Fault(
        "an edited report is taken",
        f"{S}records/reports.py",
        'if report.seal != digest({key: value for key, value in values.items() if key != "seal"}):',
        "if False:",
        at("unit/test_summary", "test_an_edited_report_is_no_figure_of_the_table"),
    ),
    Fault(
        "a run's memory is that of its first rank",
        f"{S}records/reports.py",
        "return max(rank.largest[kind] if kind else rank.peak for rank in self.tensor_bytes)",
        "return next(rank.largest[kind] if kind else rank.peak for rank in self.tensor_bytes)",
        at("unit/test_records", "test_memory_is_that_of_the_rank_that_held_the_most"),
    ),
    Fault(
        "a run's memory is its largest composition at the peak",
        f"{S}records/reports.py",
        "return max(rank.largest[kind] if kind",
        "return max(rank.at_peak[kind] if kind",
        at("unit/test_records", "test_memory_is_that_of_the_rank_that_held_the_most"),
    ),
    Fault(
        "a pipeline's rank waits by its own time alone",
        f"{S}parallel/pipeline.py",
        "        dist.all_reduce(elapsed, op=dist.ReduceOp.MAX, group=self.group)\n",
        "",
        at("unit/test_records", "test_a_pipeline_s_rank_waits_until_the_slowest_is_done"),
    ),
    # measure/.
    Fault(
        "an all-reduce sends as much as a gather",
        TRAFFIC,
        "return 2 * (ranks - 1) / ranks",
        "return (ranks - 1) / ranks",
        at("unit/test_collectives", "test_what_a_rank_of_four_sends"),
    ),
    Fault(
        "what a gather takes in counts, not what it gives",
        TRAFFIC,
        "size *= ranks  # this",
        "size *= 1  # this",
        parity("tp_sp-vit-float64"),
    ),
    Fault("bus bandwidth without the part that is sent", COLLECTIVES, "factor * 4 * count", "4 * count", BANDWIDTHS),
    Fault("the fastest rank's time counts", COLLECTIVES, "median(max(ranks) for", "median(min(ranks) for", BANDWIDTHS),
    Fault(
        "a plan without the buffers that DDP sends",
        f"{S}plan/simulate.py",
        ' + fraction_sent("broadcast", replicas) * buffers',
        "",
        parity("ddp-moe-float64"),
    ),
    Fault(
        "no gradient of the weights among the operations",
        f"{S}measure/flops.py",
        "return Flops(3 * forward,",
        "return Flops(2 * forward,",
        at("unit/test_flops", "test_linear_layers_compute_six_times_their_weights_a_sample"),
    ),
    Fault("one operation for a product and a sum", REACHED, "2 * size**3 / seconds", "size**3 / seconds", FIGURES),
    Fault("a copy only reads", REACHED, "2 * source.numel() / seconds", "source.numel() / seconds", FIGURES),
    Fault(
        "the fastest device's figures",
        REACHED,
        'float(f"{min(values):.3g}")',
        'float(f"{max(values):.3g}")',
        FIGURES,
    ),
    Fault(
        "the update is drawn as backward",
        f"{S}measure/timeline_recorder.py",
        "        self._update = True\n",
        "",
        at("unit/test_timeline", "test_a_step_has_its_phases_in_order"),
    ),
    Fault(
        "the host reads the loss each step",
        f"{S}train/step.py",
        "    if observe:\n        observe(step.number, engine)\n    if skip",
        "    whole.tolist()\n    if observe:\n        observe(step.number, engine)\n    if skip",
        parity("ddp-mlp-float64"),
    ),
    # Plans, and what follows from figures.
    Fault(
        "a plan's time without the bubble",
        PLAN,
        "    products /= 1 - (run.pipeline_bubble or 0.0)\n",
        "",
        at("unit/test_plan", "test_a_pipeline_s_time_has_its_bubble"),
    ),
    Fault(
        "runs with other micro-batches share a plan",
        PLAN,
        '"on_nonfinite", "keep_best")',
        '"on_nonfinite", "keep_best", "gradient_accumulation_steps")',
        at("unit/test_plan", "test_runs_share_a_plan_only_if_no_tensor_differs"),
    ),
    Fault(
        "runs on other devices share a plan",
        PLAN,
        'SAME = ("seed",',
        'SAME = ("site", "seed",',
        at("unit/test_plan", "test_runs_of_other_sizes_do_not_share_a_plan"),
    ),
    Fault(
        "a plan's memory is that of the emptiest rank",
        PLAN,
        'return max(int(rank["peak"])',
        'return min(int(rank["peak"])',
        at("unit/test_plan", "test_the_fullest_rank_counts"),
    ),
    Fault(
        "a plan's traffic beside the products costs nothing",
        PLAN,
        "max(products, overlapped) + waiting",
        "products + waiting",
        at("unit/test_plan", "test_the_time_is_the_longer_of_products_and_traffic_then_the_update"),
    ),
    Fault(
        "a plan advises the slowest",
        PLANS,
        "best = min(timed",
        "best = max(timed",
        at("unit/test_plan", "test_what_to_take"),
    ),
    Fault(
        "the report advises the slowest",
        f"{S}report/recommendation.py",
        'key=lambda name: -runs[name]["samples_per_second"])',
        'key=lambda name: runs[name]["samples_per_second"])',
        at("unit/test_report", "test_advice_comes_from_the_figures"),
    ),
    Fault(
        "a sweep's best variant has the highest loss",
        f"{S}report/sweep_table.py",
        'validation_mean.transform("min")',
        'validation_mean.transform("max")',
        at("unit/test_sweep", "test_mean_deviation_and_the_best"),
    ),
    Fault(
        "views of a tensor that a collective fills count as tensors of its size",
        f"{S}measure/memory.py",
        'if type(tensor).__name__ == "AsyncCollectiveTensor":',
        "if False:",
        at("parity/test_memory", "test_a_tensor_that_a_collective_fills_is_counted_once"),
    ),
    # Plans by hand.
    Fault(
        "the worst case is that of the least crowded stage",
        SIMULATE,
        '"worst_memory_bytes": max(',
        '"worst_memory_bytes": min(',
        at("unit/test_plan", "test_ranks_count_as_often_as_there_are_such_ranks"),
    ),
    Fault(
        "DDP's buckets count twice",
        SIMULATE,
        'more = max(0, size - figures["at_peak"]["gradients"])',
        "more = size",
        BUCKETS,
    ),
    Fault(
        "DeepSpeed keeps master weights of frozen ones",
        SIMULATE,
        "else trained // ranks",
        "else weights // ranks",
        STATES,
    ),
    Fault(
        "stage 2 keeps all gradients",
        SIMULATE,
        "//= 1 if level == 1 else ranks",
        "//= 1 if level < 3 else ranks",
        STATES,
    ),
    Fault(
        "stage 3 reduces a large parameter as stage 2 does",
        SIMULATE,
        "int((level - 1 + 1 / ranks)",
        "int((1 + 1 / ranks)",
        STATES,
    ),
    Fault(
        "a plan has the largest samples, whatever data is there",
        SIMULATE,
        "    if data is None:\n        task.pretend",
        "    if folder:\n        task.pretend",
        at("unit/test_plan", "test_a_plan_has_the_shapes_of_the_data_that_is_there"),
    ),
    Fault(
        "the plan of any run of the strategy is taken",
        PLAN,
        "if not plan.belongs_to(run):",
        "if plan.strategy != run.strategy:",
        at("unit/test_plan", "test_auto_is_the_least_that_fits_and_run_json_records_it"),
    ),
    Fault(
        "the update reads the optimizer and does not write it",
        PLAN,
        '2 * held["optimizer"]',
        'held["optimizer"]',
        UPDATE,
    ),
    Fault(
        "the fastest is recommended, whether it fits or not",
        PLANS,
        "timed = [plan for plan in fitting if",
        "timed = [plan for plan in plans if",
        at("unit/test_plan", "test_what_to_take"),
    ),
    Fault(
        "the rule of thumb recommends what does not fit",
        PLANS,
        "by_name = {plan.strategy: plan for plan in fitting}",
        "by_name = {plan.strategy: plan for plan in plans}",
        at("unit/test_plan", "test_what_to_take"),
    ),
    Fault(
        "what nobody knows does not fit",
        PLANS,
        '{None: "", True: "yes"',
        '{None: "no", True: "yes"',
        at("unit/test_plan", "test_a_site_without_figures_has_no_time_and_says_which_are_missing"),
    ),
    Fault(
        "the validation loss of the best epoch",
        RECORDS,
        '"validation_loss": [record["loss"] for record in records if record["kind"] == "validation"][-1]',
        '"validation_loss": min(record["loss"] for record in records if record["kind"] == "validation")',
        TIMES,
    ),
    Fault(
        "the training loss of the first step",
        RECORDS,
        'for record in reversed(steps) if record["loss"]',
        'for record in steps if record["loss"]',
        at("unit/test_records", "test_the_training_loss_is_that_of_the_last_step_that_was_finite"),
    ),
]

"""The runs of a call of Snakemake, each resolved once, and what the rules pass to their jobs about them."""

import json
from collections.abc import Container, Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from shardlab.errors import UserError
from shardlab.records import plan
from shardlab.runs import snakemake_lock
from shardlab.settings import load, model_and_data, model_rules, pretrained, resolve, run_identity
from shardlab.settings.types import DataSet, Model, Ranks, Run
from shardlab.workflow import call_checks
from shardlab.workflow.call_start import as_workflow_error

INIT = "init"
"""In the place of a strategy: the job that draws a workload's initial weights, as in results/init."""
Name = tuple[str, str]
"""Strategy or INIT, workload."""


def name_of(wildcards: Any) -> Name:
    """Return the name of the run that a job belongs to; without the wildcard ``strategy`` it draws initial weights."""
    return getattr(wildcards, "strategy", INIT), wildcards.workload


def _wait_for(paths: Iterable[str | Path]) -> None:
    """Raise FileNotFoundError until these files exist: Snakemake calls the function of a rule again then."""
    for path in paths:
        Path(path).stat()


class CallRuns:
    """The configuration of a call, and its runs.

    Every mistake in the configuration or the targets is found here, before any job starts: an error in an input
    function would show a traceback.
    """

    def __init__(self, values: dict[str, Any], arguments: list[str], overwritten: Container[str] = ()) -> None:
        """Read the configuration's ``values`` and the call's ``arguments``; --config has ``overwritten`` these keys.

        Raises:
            UserError: a mistake in them.
        """
        self.config = load.config(values)
        self.site = load.site(self.config)
        # A job reads the configuration again for its own run alone: one of a sweep of thousands must not wait for all.
        self.runs = [] if snakemake_lock.is_for_single_runs(arguments) else resolve.matrix(self.config)[0]
        self._resolved: dict[Name, Run] = {(run.strategy, run.workload): run for run in self.runs}
        self._identities: dict[Name, str] = {}
        self.requested = dict(self._resolved)
        """Runs of the configuration, and those that the targets name."""
        named: dict[Name, Run] = {}
        for target in call_checks.targets(arguments):
            name = target.strategy, target.workload
            run = self.run(name)
            resolve.check_proven(run)
            model_and_data.check_shared(self.config, run)
            if target.exported:
                pretrained.check_export(run.model)
            else:
                named[name] = run
        self.requested |= named
        self._trained = list((named if named and "all" not in arguments else self.requested).values())
        # A call of another Snakemake for one job has the other's configuration, but not its targets.
        if not self._trained and "strategies" in overwritten:
            self._trained = resolve.matrix(self.config)[0]

    def run(self, name: Name) -> Run:
        """Return the settings of a run."""
        if name not in self._resolved:
            strategy, workload = name
            self._resolved[name] = (
                resolve.initialization(self.run(("single", workload)))
                if strategy == INIT
                else resolve.run(self.config, strategy, workload)
            )
        return self._resolved[name]

    def run_of(self, wildcards: Any) -> Run:
        """Return the settings of the run that a job belongs to."""
        return self.run(name_of(wildcards))

    def frozen(self) -> dict[str, Run]:
        """Return {run.json: settings} of the runs of this call, of their initial weights, and of each `single` that
        they are compared with.
        """
        with_weights = {resolve.weights_of(workload) for _, workload in self.requested}
        names = [*self._resolved, *((INIT, name) for name in with_weights)]
        names += [("single", workload) for _, workload in self.requested]
        found = {}
        for name in names:
            with suppress(UserError):  # a call may be without them
                found["results/{}/{}/run.json".format(*name)] = self.run(name)
        return found

    def ranks(self) -> Ranks:
        """Return the settings of the ranks that this call has, whatever they do.

        Raises:
            WorkflowError: the site does not have as many.
        """
        with as_workflow_error():
            return resolve.ranks(self.config)

    def identity_of(self, wildcards: Any) -> str:
        """Return the digest of what trains the run that a job belongs to again."""
        name = name_of(wildcards)
        if name not in self._identities:
            self._identities[name] = run_identity.identity_of(self.run(name), "").run
        return self._identities[name]

    def identity_of_all(self, _: Any) -> str:
        """Return the digest of what trains any run of this call again."""
        return run_identity.digest([self.identity_of(run) for run in self.runs])

    @cached_property
    def _runs_by_weights(self) -> dict[str, list[Run]]:
        runs: dict[str, list[Run]] = {}
        for run in self._trained:
            own = [] if run.script else [run]  # what a script makes of the model is its own affair
            runs.setdefault(resolve.weights_of(run.workload), []).extend(own)
        return runs

    def strategies_of(self, workload: str, proofs: list[str]) -> str:
        """Return what the job that draws initial weights needs to know of the strategies that train them, as JSON;
        ``proofs``: the file of those that say which do, if they are made.
        """
        _wait_for(proofs)
        refused = pretrained.refusals(self.run((INIT, workload)), workload)
        runs = [run for run in self._runs_by_weights.get(workload, []) if run.strategy not in refused]
        return model_rules.reduced(runs)

    def to_prove(self, workload: str) -> str:
        """Return the strategies that may train a workload's initial weights, those that were refused before, too, as
        JSON: {name: {tensor_parts: its degree of tensor parallelism, code: digest}}.
        """
        found = {}
        for name in (*resolve.names(self.config), *self.requested):
            if resolve.weights_of(name[1]) == workload:
                with suppress(UserError):  # it does not apply
                    found[name[0]] = self.run(name)
        needed = {
            name: {"tensor_parts": run.mesh.tensor_parts, "code": run_identity.digest(run.sources)}
            for name, run in found.items()
            if not run.script
        }
        return json.dumps(needed)

    def planned(self, wildcards: Any, input: Any) -> tuple[Run | None, str]:
        """Return the settings of a run for run.json, and for its log a warning if it does not fit by its plan, or "";
        None with an error.
        """
        run = self.run_of(wildcards)
        try:
            _wait_for(input.proofs)
            resolve.check_proven(run)
            sentence = plan.misfit(run, self.site.hardware, plan.find(run, Path("results")))
        except UserError as error:  # it ends the job
            return None, f"error: {error}"
        return run, f"warning: {sentence}" if sentence else ""

    def data_set(self, name: str) -> DataSet:
        """Return the settings of a data set."""
        return model_and_data.data_set(self.config, name)

    def download_of(self, name: str) -> DataSet:
        """Return the settings of a data set that affect its download."""
        kept = {"seed": 0, "options": {}, "tokenizer": None, "model": {}, "sources": {}}
        return self.data_set(name).model_copy(update=kept)

    def model(self, name: str) -> Model:
        """Return the settings that affect the download of a transformers model; with weights if a run needs them."""
        folder = f"data/models/{name}"
        model = model_and_data.model(self.config, folder)
        runs = [run for run in self.requested.values() if run.model.folder == folder]
        starts = any(run.model.pretrained for run in runs) if runs else model.pretrained
        return model.model_copy(update={"pretrained": starts, "args": {}, "sources": {}})

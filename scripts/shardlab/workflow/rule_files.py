"""Files that rules read, by run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardlab.settings import resolve
from shardlab.settings.sites import Container
from shardlab.settings.types import DataSet
from shardlab.workflow.call_runs import INIT, CallRuns


def image_of(container: Container) -> list[str]:
    """Return the report of the runs' image; empty for a site without one."""
    if not container.enabled:
        return []
    return ["containers/named.image.json" if container.image else "containers/train.image.json"]


def raw_files(data: DataSet) -> list[str]:
    """Return the file that marks a data set's download as complete; empty for one that is not of the hub."""
    return [f"data/raw/{data.name}/download.json"] if data.hub else []


def prepared_files(data_set: str) -> list[str]:
    """Return the files of a prepared data set: its manifest, which is written last, and the samples."""
    names = ("dataset.json", "train.safetensors", "validation.safetensors", "test.safetensors")
    return [f"data/prepared/{data_set}/{name}" for name in names]


def model_files(folder: str | None, reads: Iterable[str] = ()) -> list[str]:
    """Return the file that marks a transformers model's folder as complete; empty for the project's own models.

    A folder of the user's is not marked: those of its files that a job ``reads``, as patterns, are inputs, too.
    """
    if folder is None:
        return []
    if Path(folder).parent == Path("data/models"):
        return [f"{folder}/download.json"]
    # As paths, without ./, of which Snakemake warns.
    return [str(path) for pattern in ("config.json", *reads) for path in sorted(Path(folder).glob(pattern))]


class RuleFiles:
    """Files that rules read, of a call's runs; with ``wildcards``, of the job's run."""

    def __init__(self, call: CallRuns) -> None:
        self.call = call

    def every_run(self) -> list[str]:
        """Return the files that mark all runs as trained and evaluated."""
        folders = [f"results/{run.strategy}/{run.workload}" for run in self.call.runs]
        return [*(f"{folder}.done" for folder in folders), *(f"{folder}/test.json" for folder in folders)]

    def every_result(self) -> list[str]:
        """Return what the table and the report are made from: all runs, their noise floors, differences and plans."""
        config, runs = self.call.config, self.call.runs
        floors = [f"results/noise_floor/{workload}.json" for workload in resolve.twinned(config, runs)]
        compared = [f"results/{run.strategy}/{run.workload}/weights.json" for run in resolve.compared(config, runs)]
        return [*self.every_run(), *floors, *compared, "results/plans"]

    def every_data_set(self) -> list[str]:
        """Return the files of the prepared data sets of all runs."""
        names = sorted({run.data.name for run in self.call.runs})
        return [file for name in names for file in prepared_files(name)]

    def every_model(self) -> list[str]:
        """Return the files of the transformers models of all runs."""
        folders = sorted({run.model.folder for run in self.call.runs if run.model.folder})
        return [file for folder in folders for file in model_files(folder)]

    def prepared(self, wildcards: Any) -> list[str]:
        """Return the files of a run's prepared data set."""
        return prepared_files(self.call.run_of(wildcards).data.name)

    def model(self, wildcards: Any) -> list[str]:
        """Return the files that describe a run's transformers model."""
        return model_files(self.call.run_of(wildcards).model.folder)

    def model_with_weights(self, wildcards: Any) -> list[str]:
        """Return the same, and its weights if the run starts from them."""
        model = self.call.run_of(wildcards).model
        return model_files(model.folder, ["*.safetensors*"] if model.pretrained else [])

    def downloads(self, wildcards: Any) -> list[str]:
        """Return the downloads that a run needs."""
        return raw_files(self.call.run_of(wildcards).data) + self.model(wildcards)

    def downloads_of_data_set(self, wildcards: Any) -> list[str]:
        """Return the download and the tokenizer that a data set is prepared from."""
        data = self.call.data_set(wildcards.dataset)
        return raw_files(data) + model_files(data.tokenizer, ["tokenizer*.json", "chat_template.jinja"])

    def dumping_training(self, wildcards: Any) -> list[str]:
        """Return the file that marks a script's training as complete, whose dumps a diagnosis reads; empty for a run
        that is captured.
        """
        run = self.call.run_of(wildcards)
        return [f"results/{run.strategy}/{run.workload}.done"] if run.script else []

    def proofs(self, wildcards: Any) -> list[str]:
        """Return the table of proofs of the strategies that train a run's weights; empty for models that need none."""
        workload = resolve.weights_of(wildcards.workload)
        return [f"results/init/{workload}/proofs.txt"] if self.call.run((INIT, workload)).model.folder else []

    @staticmethod
    def initial_weights(wildcards: Any) -> str:
        """Return the file of a run's initial weights, which variants of a workload share."""
        return f"results/init/{resolve.weights_of(wildcards.workload)}.safetensors"

    @staticmethod
    def initial_report(wildcards: Any) -> str:
        """Return the report of these weights."""
        return f"results/init/{resolve.weights_of(wildcards.workload)}.json"

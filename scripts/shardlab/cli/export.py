"""Export a run's weights to a folder of the transformers library, with a model
card; then verify it with the library.

Example: snakemake --profile workflow/profiles/local results/export/fsdp/llama2
"""

import shutil
from pathlib import Path

import torch

from shardlab.cli import program
from shardlab.errors import UserError
from shardlab.files import sha256, sync, sync_all, write_text
from shardlab.models import _transformers, export
from shardlab.records.reports import TestReport, TrainReport
from shardlab.runtime import tasks
from shardlab.settings.types import CAUSAL, Run, read_run
from shardlab.train import evaluation

TOLERANCE = 1e-5
"""Maximum relative difference of the test loss; the library computes in another order."""
LIBRARY = dict.fromkeys(CAUSAL, "text-generation") | {"summarization": "summarization"}
"""Task: its name on the hub; other tasks: image-classification."""


@program
def main(settings: Path, data: Path, weights: Path, output: Path) -> None:
    """Write the folder, read it with transformers, compare."""
    run = read_run(settings)
    train = TrainReport.read(weights.with_name("train.json"), "train again")
    test = TestReport.read(weights.with_name("test.json"), "evaluate again")
    if not train.weights == test.weights == sha256(weights):
        raise UserError(f"{weights} has changed since the training wrote it; train again with -f.")
    new = output.with_name(f"{output.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    export.write(run, weights, data, new)
    loss = opened(run, data, new)
    if abs(loss - test.loss) > TOLERANCE * abs(test.loss):
        shutil.rmtree(new)
        raise UserError(
            f"transformers reaches test loss {loss:.8g} with these weights, but test.json says {test.loss:.8g}; "
            "do not use them."
        )
    write_text(new / "README.md", card(run, train, test, loss))
    sync_all(new)
    shutil.rmtree(output, ignore_errors=True)
    new.replace(output)
    sync(output.parent)
    print(f"{output}: transformers opens it; test loss {loss:.8g}, in test.json {test.loss:.8g}.")


def opened(run: Run, data: Path, folder: Path) -> float:
    """Return the test loss of the folder's model, as loaded by the library."""
    device = torch.device(run.site.device)
    task = tasks.load(run.task, data, torch.float32, device)
    model = _transformers.create(run.task, str(folder), {}, pretrained=True)
    return evaluation.evaluate_model(run, task, model.to(device)).loss


def card(run: Run, train: TrainReport, test: TestReport, loss: float) -> str:
    """Format the model card: data, results and code (huggingface.co/docs/hub/model-cards)."""
    source = run.data.hub.repo if run.data.hub else f"embedded ({run.data.name})"
    metric = "" if test.metric_value is None else f"| {test.metric_name} | {test.metric_value:.6g} |\n"
    return f"""---
library_name: transformers
pipeline_tag: {LIBRARY.get(run.task, "image-classification")}
---

# {run.workload}, trained under {run.strategy}

| | |
| --- | --- |
| test loss | {test.loss:.8g} (as transformers computes it: {loss:.8g}) |
{metric}| parameters | {train.parameters:,} |
| data | {source}, fingerprint {train.identity.data} |
| steps, samples, ranks | {train.steps}, {train.samples}, {train.world_size} |
| code | {train.git_commit or "unknown commit"} |

Trained by Shardlab, which trains one model under every parallel strategy and compares their test losses.
The license of the weights depends on the license of the data.
"""

"""A Workflow Run RO-Crate of a call: code, settings, data fingerprints, image, what came out.

Profile: https://w3id.org/ro/wfrun/workflow/0.5 (Leo et al., 2024, doi:10.1371/journal.pone.0309210).
"""

import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from shardlab.errors import UserError, remedy
from shardlab.files import ROOT, sha256
from shardlab.report.run_data import RunData
from shardlab.settings.config import Config

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
TERMS = {
    "sha256": "https://w3id.org/ro/terms/workflow-run#sha256",
    "containerImage": "https://w3id.org/ro/terms/workflow-run#containerImage",
    "ContainerImage": "https://w3id.org/ro/terms/workflow-run#ContainerImage",
}
LICENCE = "https://spdx.org/licenses/Apache-2.0"
JSON = "application/json"
FORMATS = {
    ".json": JSON,
    ".jsonl": "application/jsonl",
    ".yaml": "application/yaml",
    ".csv": "text/csv",
    ".md": "text/markdown",
    ".html": "text/html",
    ".py": "text/x-python",
    ".js": "text/javascript",
    ".css": "text/css",
}
"""Media types; other files: plain text."""
OF_ALL = ("summary.csv", "summary.md", "report.html")
OF_A_RUN = ("run.json", "train.json", "test.json", "metrics.jsonl", "attempts.json")


def write(folder: Path, config: Config, run_data: RunData, project: Path) -> int:
    """Write the crate into a new ``folder`` (files are copied, weights are named by their digest); return its file
    count.

    ``project`` is the working directory of the call.

    Raises:
        UserError: there is no finished run.
    """
    if not run_data.runs:
        raise UserError(f"there is no finished run to describe; {remedy('train first', 'all')}.")
    crate = _described()
    workflow = crate.add_workflow(ROOT / "Snakefile", "Snakefile", main=True, lang="snakemake", gen_cwl=False)
    commits = sorted({run.train.git_commit for run in run_data.runs if run.train.git_commit})
    about = {"encodingFormat": "text/markdown", "about": {"@id": "./"}}
    crate.add_file(ROOT / "README.md", "README.md", properties=about)
    workflow["encodingFormat"] = "text/plain"
    workflow["version"] = ", ".join(commits) or "unknown"
    for name in ("workflow", "scripts", "config", "envs"):
        for path in sorted((ROOT / name).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                kind = {"encodingFormat": FORMATS.get(path.suffix, "text/plain")}
                crate.add_file(path, path.relative_to(ROOT).as_posix(), properties=kind)
    inputs = [_settings(crate, config)] + [_file(crate, path, project) for path in _data(run_data, project)]
    results = [run_data.results / name for name in OF_ALL]
    for run in run_data.runs:
        results += [run_data.results / run.name / name for name in OF_A_RUN]
    outputs = [_file(crate, path, project) for path in results if path.exists()]
    _action(crate, workflow, inputs, outputs, run_data)
    shutil.rmtree(folder, ignore_errors=True)
    crate.write(folder)
    return len(inputs) + len(outputs)


def _described() -> ROCrate:
    crate = ROCrate(gen_preview=False, version="1.1")
    crate.metadata.extra_terms.update(TERMS)
    crate.name = "Shardlab: one model under every parallel strategy"
    crate.description = "Settings, data fingerprints, code and results of one call of the workflow Shardlab."
    about = {"@type": "CreativeWork", "name": "Apache License 2.0", "description": "Of the code."}
    crate.license = crate.add(ContextEntity(crate, LICENCE, about))
    crate.root_dataset["conformsTo"] = [
        crate.add(ContextEntity(crate, url, {"@type": "CreativeWork", "name": name, "version": url.rpartition("/")[2]}))
        for url, name in PROFILES.items()
    ]
    return crate


def _settings(crate: ROCrate, config: Config) -> Any:
    """Add the configuration of the call, as a file in the crate."""
    text = io.StringIO(json.dumps(config.model_dump(mode="json"), indent=2) + "\n")
    return crate.add_file(text, "call.json", properties={"name": "Configuration of the call", "encodingFormat": JSON})


def _data(run_data: RunData, project: Path) -> list[Path]:
    """Return the manifests of the data sets that runs read: sizes and fingerprints, without the samples."""
    names = sorted({run.train.settings["data"]["name"] for run in run_data.runs})
    paths = [project / "data/prepared" / name / "dataset.json" for name in names]
    return [path for path in paths if path.exists()]


def _file(crate: ROCrate, path: Path, project: Path) -> Any:
    where = path.resolve().relative_to(project.resolve()).as_posix()
    about = {"name": where, "encodingFormat": FORMATS[path.suffix], "sha256": sha256(path)}
    return crate.add_file(path, where, properties=about | {"contentSize": str(path.stat().st_size)})


def _action(crate: ROCrate, workflow: Any, inputs: list[Any], outputs: list[Any], run_data: RunData) -> None:
    """Add the call, as far as its runs record when and where it took place."""
    started = [attempt.began for run in run_data.runs for attempt in run.train.attempts]
    hosts = sorted({host for run in run_data.runs for host in run.train.hosts})
    about: dict[str, Any] = {
        "name": f"{len(run_data.runs)} trainings on {', '.join(hosts)}",
        "description": "Trainings under several parallel strategies, their evaluation, and the report of all of them.",
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "endTime": time.strftime(
            "%Y-%m-%dT%H:%M:%S+00:00", time.gmtime((run_data.results / "summary.csv").stat().st_mtime)
        ),
    }
    if started:
        about["startTime"] = min(started)
    action = crate.add_action(workflow, object=inputs, result=outputs, properties=about)
    crate.root_dataset.append_to("mentions", action)
    for digest in sorted({run.train.image_digest for run in run_data.runs if run.train.image_digest}):
        image = {"@type": "ContainerImage", "name": "Apptainer image of the runs", "sha256": digest}
        action.append_to("containerImage", crate.add(ContextEntity(crate, f"#image-{digest[:12]}", image)))

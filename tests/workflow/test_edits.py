"""After an edit of what prepared data or initial weights are made from, one call makes all again that follows."""

import re

import pytest

from helpers import transformers_models
from helpers.hub_files import articles, environment, repository
from helpers.hub_server import Hub

WORKLOAD = """
model: hf:{model}
task: summarization
data: {data}
sizes:
  small:
    model: {{revision: main, pretrained: {pretrained}}}
    data: {{rows: 40, document_tokens: 24, summary_tokens: 8}}
    recipe: {{max_steps: 2}}
"""
HUB = """{hub: {name: rows, reader: hub, hub: {
  repo: tester/articles, revision: main, columns: [document, summary],
  splits: {train: train, validation: validation, test: test}}}}"""
EDITS = {
    "rows": ("config/workloads/rows.yaml", "splits:", "rows: {train: 50}, splits:"),
    "revision": ("config/workloads/revision.yaml", "{revision: main", f"{{revision: {'b' * 40}"),
    "tokenizer": ("models/t5/tokenizer.json", "{", "{ "),
}
"""Workload: the file that is edited, what is replaced in it, and by what."""


@pytest.mark.long  # of code and of settings: test_matrix.py, test_scripts.py
def test_one_call_after_an_edit_of_data_model_or_tokenizer(make_tree, tmp_path):
    tree = make_tree(tmp_path / "tree")
    files = transformers_models.make("t5", tree.path / "models/t5")
    text = {"train": articles(60), "validation": articles(20), "test": articles(20)}
    repositories = {"tester/articles": repository("default", text)}
    for name in ("rows", "revision"):
        repositories[f"tester/{name}"] = {path.name: path.read_bytes() for path in files.iterdir()}
    hub = Hub(repositories)
    # The first two have one model, and the second one starts from its weights.
    models = {"fresh": "tester/rows", "rows": "tester/rows", "revision": "tester/revision", "tokenizer": "./models/t5"}
    for name, place in models.items():
        pretrained = str(name != "fresh").lower()
        data = HUB if name == "rows" else f"{{embedded: {{name: {name}, reader: package_docstrings}}}}"
        workload = WORKLOAD.format(model=place, data=data, pretrained=pretrained)
        (tree.path / f"config/workloads/{name}.yaml").write_text(workload)
    call = ["--config", "data=hub", "workloads=[fresh,rows,revision,tokenizer]", "strategies=[single]", "--"]
    call += [f"data/prepared/{name}/dataset.json" for name in EDITS]
    call += [f"results/{place}/{name}/run.json" for name in EDITS for place in ("init", "single")]
    tree.snakemake(*call, **environment(hub))
    hub.close()
    assert (tree.path / "data/models/tester--rows/model.safetensors").exists()
    assert "Nothing to be done" in tree.snakemake("-n", *call).stdout
    for path, old, new in EDITS.values():
        text = (tree.path / path).read_text()
        assert old in text
        (tree.path / path).write_text(text.replace(old, new, 1))
    listed = tree.snakemake("-n", *call).stdout
    jobs = re.findall(r"^Job \d+: (.*)", listed, re.MULTILINE)
    assert sorted(jobs) == sorted(
        [
            "Downloading data set rows",
            "Downloading model tester--revision",
            *(f"Preparing data set {name}" for name in EDITS),
            *(
                f"Proving on a tiny model which strategies train {name} as one process does"
                for name in ("rows", "revision")
            ),
            *(f"Resolving single x {name}" for name in ("rows", "revision")),
            *(f"Resolving the initial weights of {name}" for name in ("rows", "revision")),
        ]
    )

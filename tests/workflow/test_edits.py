"""After an edit of what prepared data are made from, one call makes all again that follows."""

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
    model: {{revision: main, pretrained: true}}
    data: {{rows: 40, document_tokens: 24, summary_tokens: 8}}
    recipe: {{max_steps: 2}}
"""
HUB = """{hub: {name: rows, reader: hub, hub: {
  repo: tester/articles, revision: main, columns: [document, summary],
  splits: {train: train, validation: validation, test: test}}}}"""
EDITS = {
    "rows": ("config/workloads/rows.yaml", "splits:", "rows: {train: 50}, splits:"),
    "tokenizer": ("models/t5/tokenizer.json", "{", "{ "),
}
"""Workload: the file that is edited, what is replaced in it, and by what."""


@pytest.mark.long  # of code and of settings: test_matrix.py, test_scripts.py
def test_one_call_after_an_edit_of_data_or_tokenizer(make_tree, tmp_path):
    tree = make_tree(tmp_path / "tree")
    files = transformers_models.make("t5", tree.path / "models/t5")
    text = {"train": articles(60), "validation": articles(20), "test": articles(20)}
    of_model = {path.name: path.read_bytes() for path in files.iterdir()}
    hub = Hub({"tester/articles": repository("default", text), "tester/rows": of_model})
    for name, place in (("rows", "tester/rows"), ("tokenizer", "./models/t5")):
        data = HUB if name == "rows" else f"{{embedded: {{name: {name}, reader: package_docstrings}}}}"
        (tree.path / f"config/workloads/{name}.yaml").write_text(WORKLOAD.format(model=place, data=data))
    call = ["--config", "data=hub", "workloads=[rows,tokenizer]", "strategies=[single]", "--"]
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
    assert sorted(jobs) == [
        "Downloading data set rows",
        "Preparing data set rows",
        "Preparing data set tokenizer",
        "Proving on a tiny model which strategies train rows as one process does",
        "Resolving single x rows",
        "Resolving the initial weights of rows",
    ]

"""Data set repositories laid out as on the hub, small, and the variables that lead a client to a hub of ours."""

import io
import random

import datasets
import huggingface_hub

from helpers.common import ROOT

README = """---
configs:
- config_name: {config}
  data_files:
{files}  default: true
---
"""


def parquet(columns):
    """Bytes of a Parquet file as ``datasets`` writes it."""
    buffer = io.BytesIO()
    datasets.Dataset.from_dict(columns).to_parquet(buffer)
    return buffer.getvalue()


def repository(config, splits):
    """Files of a Parquet repository laid out as on the hub: config/split-00000-of-00001.parquet and a README."""
    files = "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits)
    paths = {f"{config}/{split}-00000-of-00001.parquet": parquet(columns) for split, columns in splits.items()}
    return paths | {"README.md": README.format(config=config, files=files).encode()}


def articles(count):
    words = (ROOT / "README.md").read_text().split()
    pick = random.Random(0).choices
    return {
        "document": [" ".join(pick(words, k=60)) for _ in range(count)],
        "summary": [" ".join(pick(words, k=8 + i % 7)) for i in range(count)],
    }


def environment(hub):
    """Variables for a process that is to use ``hub``."""
    return {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def use_here(hub, monkeypatch, home):
    """Lead the client in this process to ``hub``; what it keeps goes to ``home``."""
    constants, config = huggingface_hub.constants, datasets.config
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(config, "HF_ENDPOINT", hub.url)
    monkeypatch.setattr(config, "HUB_DATASETS_URL", f"{hub.url}/datasets/{{repo_id}}/resolve/{{revision}}/{{path}}")
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", home / "datasets")
    monkeypatch.setattr(config, "DOWNLOADED_DATASETS_PATH", home / "downloads")

"""Data set repositories as they lie on the hub, small, and the variables that lead a client to a hub of ours.

The functions at the end make the repositories of the workloads: their files, formats, columns, types, splits and
README.md as documented, with content of our own. Not verified: README.md of Tiny ImageNet, which is made without
``dataset_info``; and XSum's main, which had a loading script at the time of all sources that were found.
"""

import io
import json
import random

import datasets
import huggingface_hub
import numpy as np
import yaml
from PIL import Image, ImageDraw

from helpers.common import ROOT

README = """---
configs:
- config_name: {config}
  data_files:
{files}  default: true
---
"""


def parquet(columns, features=None):
    """Bytes of a Parquet file as ``datasets`` writes it, with its types (pictures as Image) in the metadata."""
    buffer = io.BytesIO()
    datasets.Dataset.from_dict(columns, features).to_parquet(buffer)
    return buffer.getvalue()


def repository(config, splits):
    """Files of a Parquet repository laid out as on the hub: config/split-00000-of-00001.parquet and a README."""
    files = "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits)
    paths = {f"{config}/{split}-00000-of-00001.parquet": parquet(columns) for split, columns in splits.items()}
    return paths | {"README.md": README.format(config=config, files=files).encode()}


def pictures(count):
    pixels = np.random.default_rng(0).integers(0, 255, (count, 28, 28), dtype=np.uint8)
    return {"image": [Image.fromarray(each) for each in pixels], "label": [i % 10 for i in range(count)]}


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


STRING = datasets.Value("string")
GIT = {".gitattributes": b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"}


def wikitext():
    """Salesforce/wikitext: four configurations in one README, the two large ones with train in two files.

    A row is a line of an article: blank, `` = Title = ``, `` = = Section = = ``, or a paragraph. Only wikitext-2-raw-v1
    has files that can be read: nothing else is to be fetched.
    """
    names = ("wikitext-103-raw-v1", "wikitext-103-v1", "wikitext-2-raw-v1", "wikitext-2-v1")
    used, features = names[2], datasets.Features({"text": STRING})
    rows = {"test": 80, "train": 300, "validation": 60}
    files = {}
    for name in names:
        for split in rows:
            shards = 2 if split == "train" and "103" in name else 1
            files |= {f"{name}/{split}-{i:05}-of-{shards:05}.parquet": b"not to be fetched" for i in range(shards)}
    for seed, (split, count) in enumerate(rows.items()):
        files[f"{used}/{split}-00000-of-00001.parquet"] = parquet({"text": _lines(count, seed)}, features)
    return files | GIT | _readme({name: (features, {split: f"{name}/{split}-*" for split in rows}) for name in names})


def mnist():
    """ylecun/mnist: PNG of 28 x 28, mode L."""
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[str(i) for i in range(10)])}
    )
    files = {}
    for split, count in (("train", 300), ("test", 60)):
        drawings = [_drawing("L", 28, i) for i in range(count)]
        columns = {"image": [_file(each, "PNG") for each in drawings], "label": [i * 7 % 10 for i in range(count)]}
        files[f"mnist/{split}-00000-of-00001.parquet"] = parquet(columns, features)
    paths = {"train": "mnist/train-*", "test": "mnist/test-*"}
    return files | GIT | _readme({"mnist": (features, paths)}, default=True)


def tiny_imagenet():
    """zh-plus/tiny-imagenet: JPEG of 64 x 64, RGB and, as some there, L; dataset_infos.json of an old `datasets`."""
    names = [f"n{1443537 + 55001 * i:08}" for i in range(200)]  # synsets of WordNet; only the first is a real one
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    files, splits = {}, {}
    for split, count, suffix in (("train", 300, "1359597a978bc4fa"), ("valid", 60, "70d52db3c749a935")):
        drawings = [_drawing("L" if i % 20 == 3 else "RGB", 64, i) for i in range(count)]
        columns = {"image": [_file(each, "JPEG") for each in drawings], "label": [i * 7 % 200 for i in range(count)]}
        files[f"data/{split}-00000-of-00001-{suffix}.parquet"] = parquet(columns, features)
        splits[split] = {"name": split, "num_bytes": 1.0, "num_examples": count, "dataset_name": "tiny-imagenet"}
    types = {
        "image": {"decode": True, "id": None, "_type": "Image"},
        "label": {"num_classes": 200, "names": names, "id": None, "_type": "ClassLabel"},
    }
    information = {"features": types, "builder_name": "imagefolder", "config_name": "default", "splits": splits}
    card = {"task_categories": ["image-classification"], "language": ["en"], "pretty_name": "Tiny-ImageNet"}
    return (
        files
        | GIT
        | {
            "dataset_infos.json": json.dumps({"Maysee--tiny-imagenet": information}).encode(),
            "README.md": f"---\n{yaml.safe_dump(card)}---\n".encode(),
        }
    )


def xsum():
    """EdinburghNLP/xsum at refs/convert/parquet: no README, train here in two files as larger sets have it."""
    features = datasets.Features({"document": STRING, "summary": STRING, "id": STRING})
    files = {}
    for seed, (path, count) in enumerate(
        {"train/0000": 100, "train/0001": 50, "validation/0000": 30, "test/0000": 30}.items()
    ):
        made = random.Random(100 + seed)
        columns = {
            "document": ["\n".join(_sentence(made, 12) for _ in range(1 + i % 9)) for i in range(count)],
            "summary": [_sentence(made, 4 + i % 9) for i in range(count)],
            "id": [str(10_000_000 + 1000 * seed + i) for i in range(count)],
        }
        files[f"default/{path}.parquet"] = parquet(columns, features)
    return files | GIT


def gsm8k():
    """openai/gsm8k: two configurations, of which only main is to be fetched; no validation split."""
    features, rows = datasets.Features({"question": STRING, "answer": STRING}), {"train": 700, "test": 60}
    files = {f"socratic/{split}-00000-of-00001.parquet": b"not to be fetched" for split in rows}
    for seed, (split, count) in enumerate(rows.items()):
        made = random.Random(200 + seed)
        columns = {
            "question": [_sentence(made, 8 + i % 30) for i in range(count)],
            "answer": [f"{_sentence(made, 3 + i % 9)}\n#### {i}" for i in range(count)],
        }
        files[f"main/{split}-00000-of-00001.parquet"] = parquet(columns, features)
    return (
        files | GIT | _readme({name: (features, {s: f"{name}/{s}-*" for s in rows}) for name in ("main", "socratic")})
    )


def _readme(configurations, *, default=False):
    """A README.md with the features and files of each configuration, as `datasets` writes it when it pushes."""
    card = {"dataset_info": [], "configs": []}
    for name, (features, paths) in configurations.items():
        card["dataset_info"].append({"config_name": name, "features": features._to_yaml_list()})
        files = [{"split": split, "path": path} for split, path in paths.items()]
        card["configs"].append({"config_name": name, "data_files": files} | ({"default": True} if default else {}))
    if len(configurations) == 1:
        card["dataset_info"] = card["dataset_info"][0]
    return {"README.md": f"---\n{yaml.safe_dump(card, sort_keys=False)}---\n".encode()}


def _sentence(made, words):
    known = (ROOT / "docs" / "equality.md").read_text().split()
    return " ".join(made.choices([word for word in known if word.isalpha()], k=words)).capitalize() + "."


def _lines(count, seed):
    made = random.Random(seed)
    lines = ["", " = Robert <unk> = \n", ""]
    while len(lines) < count:
        lines += ["", f" = = {_sentence(made, 2)[:-1]} = = \n", ""]
        lines += [f" {_sentence(made, 30 + 10 * i)[:-1]} @-@ 1 @,@ 600 . Café — naïve \n" for i in range(3)]
    return lines[:count]


def _drawing(mode, size, seed):
    """A picture with edges, a gradient and no symmetry, so that no swap of axes or channels goes unseen."""
    made = random.Random(seed)
    picture = Image.linear_gradient("L").resize((size, size)).convert(mode)
    draw = ImageDraw.Draw(picture)
    for _ in range(4):
        ends = [made.randrange(size) for _ in range(4)]
        color = tuple(made.randrange(256) for _ in range(3))
        draw.line(ends, fill=color if mode == "RGB" else color[0], width=1 + size // 16)
    return picture


def _file(picture, form):
    buffer = io.BytesIO()
    picture.save(buffer, form)
    return {"bytes": buffer.getvalue(), "path": None}

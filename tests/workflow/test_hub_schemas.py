"""Every workload's data of the hub, from repositories with the real ones' schema to the end of a training.

What is prepared is compared with the repositories' files by pyarrow, PIL and tokenizers alone.
"""

import io
import json
import re
import string
from collections import Counter

import numpy as np
import pyarrow.parquet
import pytest
import transformers
from PIL import Image
from safetensors.numpy import load_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from helpers import hub_files
from helpers.common import ROOT
from helpers.hub_server import Hub

pytestmark = pytest.mark.long
DECODERS = {
    "gpt2": ("openai-community/gpt2", transformers.GPT2Config()),
    "qwen3": ("Qwen/Qwen3-0.6B", transformers.Qwen3Config(eos_token_id=151645)),
    "gemma3": ("google/gemma-3-270m", transformers.Gemma3TextConfig()),
    "mixtral": ("mistralai/Mixtral-8x7B-v0.1", transformers.MixtralConfig()),
}
"""Workload: repository and sizes of its model."""
WORKLOADS = ("llama2", "moe", "instruct", "mnist", "vit", "vit_pretrained", "xsum", "t5", *DECODERS)
REPOSITORIES = {
    "Salesforce/wikitext": hub_files.wikitext,
    "ylecun/mnist": hub_files.mnist,
    "zh-plus/tiny-imagenet": hub_files.tiny_imagenet,
    "EdinburghNLP/xsum": hub_files.xsum,
    "openai/gsm8k": hub_files.gsm8k,
}
RUN = {"max_steps": 2, "eval_batch_size": 32}


def t5_base():
    """Files of google-t5/t5-base without weights: its sizes, and a Unigram tokenizer with its special tokens."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        initial_alphabet=list(string.printable),
        show_progress=False,
    )
    tokenizer.train_from_iterator([(ROOT / "docs" / "equality.md").read_text()] * 2, trainer)
    tokenizer.add_special_tokens([f"<extra_id_{i}>" for i in range(100)])
    config = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32128}
    return _model(transformers.T5Config(**config, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)) | {
        "tokenizer.json": tokenizer.to_str().encode()
    }


def _model(config):
    return {"config.json": config.to_json_string(use_diff=False).encode()}


def decoder(config):
    """Files of a decoder without weights: its sizes, and a tokenizer of bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([(ROOT / "docs" / "equality.md").read_text()], trainer)
    return _model(config) | {"tokenizer.json": tokenizer.to_str().encode()}


@pytest.fixture(scope="module")
def repositories():
    return {name: make() for name, make in REPOSITORIES.items()}


@pytest.fixture(scope="module")
def hub(repositories):
    models = {
        "google-t5/t5-base": t5_base(),
        "google/vit-base-patch16-224": _model(transformers.ViTConfig(num_labels=1000)),
    }
    models |= {name: decoder(config) for name, config in DECODERS.values()}
    server = Hub(repositories | models)
    yield server
    server.close()


@pytest.fixture(scope="module")
def trained(hub, make_tree, tmp_path_factory):
    """The project after one call that trained every workload; only the pictures held out are fewer than shipped."""
    tree = make_tree(tmp_path_factory.mktemp("schemas"))
    for path in (tree.path / "config/workloads").glob("*.yaml"):
        path.write_text(path.read_text().replace("validation: 5000", "validation: 40"))
    keys = ["data=hub", f"workloads={json.dumps(WORKLOADS)}", "strategies=[single]", f"recipe={json.dumps(RUN)}"]
    reports = [f"results/single/{workload}/test.json" for workload in WORKLOADS]
    tree.snakemake("--config", *keys, "--", *reports, **hub_files.environment(hub))
    return tree


@pytest.fixture(scope="module")
def fetched(hub, trained):
    """Paths of the files that the call fetched, as repository/path."""
    asked = [path.partition("/resolve/") for method, path, _ in hub.calls if method == "GET"]
    return {path.removeprefix("/datasets") + "/" + file.partition("/")[2] for path, slash, file in asked if slash}


def prepared(tree, name, split):
    return load_file(tree.path / "data" / "prepared" / name / f"{split}.safetensors")


def rows(repository, pattern):
    """Rows of the files whose name has ``pattern``, read by pyarrow."""
    files = [content for path, content in sorted(repository.items()) if re.search(pattern, path)]
    return [row for content in files for row in pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()]


def test_every_workload_trains_to_its_test_loss(trained):
    for workload in WORKLOADS:
        report = trained.json(f"results/single/{workload}/test.json")
        assert report["loss"] != report["untrained_loss"], workload


def test_only_the_files_of_the_named_configuration_are_fetched(fetched, repositories):
    files = {f"/{name}/{path}" for name, repository in repositories.items() for path in repository}
    others = {path for path in files if re.search("wikitext-(103|2-v1)|socratic", path)}
    assert len(others) == 13
    assert {path for path in fetched if path.endswith(".parquet")} == {
        path for path in files - others if path.endswith(".parquet")
    }


@pytest.mark.parametrize(
    ("name", "repository", "test", "mode", "size"),
    [
        ("mnist", "ylecun/mnist", "/test-", "L", 28),
        ("tiny_imagenet", "zh-plus/tiny-imagenet", "/valid-", "RGB", 64),
        ("tiny_imagenet_224", "zh-plus/tiny-imagenet", "/valid-", "RGB", 224),
    ],
)
def test_pictures_are_those_of_the_repository(trained, repositories, name, repository, test, mode, size):
    def pixels(row):
        picture = Image.open(io.BytesIO(row["image"]["bytes"])).convert(mode)
        picture = picture if picture.width == size else picture.resize((size, size))
        return np.asarray(picture).reshape(size, size, -1)

    def content(split):
        arrays = prepared(trained, name, split)
        return [
            (np.moveaxis(each, 0, 2), label) for each, label in zip(arrays["images"], arrays["labels"], strict=True)
        ]

    source = [(pixels(row), row["label"]) for row in rows(repositories[repository], test)]
    assert len(source) == len(content("test"))
    for expected, found in zip(source, content("test"), strict=True):
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1] == expected[1]
    source = [(pixels(row), row["label"]) for row in rows(repositories[repository], "/train-")]
    held, kept = content("validation"), content("train")
    assert (len(held), len(kept)) == (40, len(source) - 40)
    counts = [Counter((image.tobytes(), int(label)) for image, label in part) for part in (source, held + kept)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_text_is_that_of_the_repository(trained, repositories, split):
    folder = trained.path / "data" / "prepared" / "wikitext"
    tokens = prepared(trained, "wikitext", split)["tokens"]
    np.testing.assert_array_equal(tokens[1:, 0], tokens[:-1, -1])
    stream = [*tokens[0, :1], *tokens[:, 1:].ravel()]
    text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(stream).rstrip("\ufffd")
    source = "".join(row["text"] for row in rows(repositories["Salesforce/wikitext"], f"2-raw-v1/{split}-"))
    assert source.startswith(text)
    assert len(source) - len(text) < 64 * 20  # less than a window of tokens is left


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize(("name", "prefix"), [("xsum", ""), ("xsum_t5", "summarize: ")])
def test_documents_and_summaries_are_those_of_the_repository(trained, repositories, name, prefix, split):
    folder = trained.path / "data" / "prepared" / name
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = trained.json(folder / "dataset.json")["special_tokens"]
    arrays = prepared(trained, name, split)
    source = rows(repositories["EdinburghNLP/xsum"], f"default/{split}/")
    whole = Counter()
    for column, before, most in (("document", prefix, 64), ("summary", "", 20)):
        offsets = arrays[f"{column}_offsets"]
        assert len(offsets) == len(source) + 1
        for row, begin, end in zip(source, offsets[:-1], offsets[1:], strict=True):
            ids = arrays[column][begin:end]
            if column == "summary":
                assert ids[0] == special["start"]
                ids = ids[1:]
            assert ids[-1] == special["end"]
            assert len(ids) <= most
            expected, found = before + row[column], tokenizer.decode(ids[:-1]).rstrip("\ufffd")
            if prefix:  # this tokenizer keeps no line ends
                expected = " ".join(expected.split())
            assert expected.startswith(found) if len(ids) == most else expected == found
            whole[column] += len(ids) < most
    assert all(whole[column] > 0 for column in ("document", "summary"))

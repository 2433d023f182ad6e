"""Types of transformers models, each with something of its own, under every axis: as docs/evidence.md says."""

import os
import subprocess
import sys

import pytest
import zoo

from helpers.common import ROOT

pytestmark = pytest.mark.long  # what is special of them under one axis each: test_transformers.py
KINDS = {
    "llama": "rotary positions, nothing else",
    "qwen3": "norms of each head",
    "olmo2": "norms over all heads",
    "gemma2": "softcap, windows, a scaled embedding",
    "gemma3_text": "two kinds of rotary positions",
    "llama4_text": "chunks, experts, layers without positions",
    "gpt_oss": "sinks, experts with biases",
    "mixtral": "experts",
    "qwen2_moe": "a shared expert with a gate",
    "deepseek_v3": "latent attention, groups of experts",
    "phi3": "projections in one matrix",
    "cohere2": "attention and feed-forward in parallel, scaled logits",
    "granite": "scaled residuals",
    "glm4": "half of a head rotated",
    "gpt2": "learned positions, transposed projections, tied",
    "gptj": "one norm for attention and feed-forward",
    "bloom": "biases by distance",
    "opt": "positions with an offset",
    "lfm2": "convolutions between layers of attention",
    "mamba": "recurrence",
}
"""Type: what is its own."""
STRATEGIES = ("fsdp_tp", "pp", "cp", "fsdp_ep")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """{type: {strategy: proof}}, of a process of its own: it forks the ranks."""
    path = tmp_path_factory.mktemp("zoo") / "zoo.jsonl"
    words = [sys.executable, str(ROOT / "benchmarks/zoo.py"), *KINDS, "--at-once=1", "--output", str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*words, "--strategies", *STRATEGIES], env=environment, capture_output=True, check=True)
    return zoo.read(path)


def on_the_page():
    """{type: {strategy: sign}} of docs/models.md."""
    lines = (ROOT / "docs/models.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    title = next(row for row in cells if row[0] == "type")
    names = [name.strip("`") for name in title[1:]]
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in cells if len(row) == len(title)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_is_what_the_page_says(found, kind):
    signs = {name: zoo.SIGNS[proof.verdict] for name, proof in found[kind].items()}
    page = on_the_page()[kind]
    assert signs == {name: page[name] for name in STRATEGIES}, found[kind]

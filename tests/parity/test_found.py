"""Each script of examples/found shows, with the pinned releases, what docs/found.md says."""

import re

import pytest
import script_rank

from helpers.common import ROOT

SCRIPTS = sorted((ROOT / "examples/found").glob("*.py"))
SECTIONS = dict(
    re.findall(
        r"```console\n[^\n]*examples/found/(\w+)\.py\n```\n\n```text\n(.*?)```",
        (ROOT / "docs/found.md").read_text(),
        re.S,
    )
)
"""Script: what the page says that it prints."""
LINE = re.compile(r"^(.+: (?:wrong|found)) (\S+), right (\S+)$", re.MULTILINE)
ONE_PROCESS = "trainer_gpt2_loss"
PACKAGES = {"trainer_gpt2_loss": "accelerate", "adapters_under_fsdp": "peft"}
"""Besides those of envs/train.txt."""
SECONDS = 300


def test_every_script_has_a_section_and_at_most_30_lines():
    assert {path.stem for path in SCRIPTS} == {*SECTIONS}
    assert {
        path.name: len(path.read_text().splitlines()) for path in SCRIPTS if path.read_text().count("\n") > 30
    } == {}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_pinned_release_shows_what_the_page_says(path, tmp_path):
    if path.stem in PACKAGES:
        pytest.importorskip(PACKAGES[path.stem])
    script_rank.run(path, [], 1 if path.stem == ONE_PROCESS else 2, tmp_path / "log", SECONDS)
    printed = LINE.findall((tmp_path / "log").read_text())
    for what, found, right in printed:
        mended = what.endswith("wrong") and float(found) == pytest.approx(float(right), rel=1e-3)
        assert not mended, (
            f"the pinned release has mended what {path.name} shows ({what[:-7]}): take it off docs/found.md"
        )
    expected = LINE.findall(SECTIONS[path.stem])
    assert expected
    assert [what for what, *_ in printed] == [what for what, *_ in expected]
    for (_, *numbers), (what, *on_page) in zip(printed, expected, strict=True):
        assert [*map(float, numbers)] == pytest.approx([*map(float, on_page)], rel=2e-3), what

"""The documentation site."""

import re
import shutil

from helpers.common import ROOT, Tree


def test_the_site_is_built_and_its_links_lead_somewhere(make_tree, tmp_path):
    make_tree(tmp_path / ".site")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    Tree(tmp_path).run("python", "-m", "mkdocs", "build", "--strict")
    page = (tmp_path / "site/docs/cluster/index.html").read_text()
    assert not re.search(r"<(script|link|img)\b[^>]*https?://", page), "nothing is loaded from elsewhere"

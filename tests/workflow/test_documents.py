"""The documentation site."""

import re
import shutil

from helpers.common import ROOT


def test_the_site_is_built_and_its_links_lead_somewhere(make_tree, tmp_path):
    make_tree(tmp_path / ".site")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    tree = type(make_tree(tmp_path / "unused"))(tmp_path)
    tree.run("python", "-m", "mkdocs", "build", "--strict")
    page = (tmp_path / "site/docs/cluster/index.html").read_text()
    assert not re.search(r'(src|href)="https?://[^"]*\.(js|css|woff2?)"', page), "nothing is loaded from elsewhere"
    (tmp_path / ".site/docs/troubleshooting.md").write_text("[nowhere](nothing.md)\n")
    assert "nothing.md" in tree.run("python", "-m", "mkdocs", "build", "--strict", check=False).stdout

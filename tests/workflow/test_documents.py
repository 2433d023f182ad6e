"""The documentation site."""

import re
import shutil

from helpers.common import ROOT


def test_the_site_is_built_and_its_links_lead_somewhere(make_tree, tmp_path):
    make_tree(tmp_path / ".site")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    tree = type(make_tree(tmp_path / "unused"))(tmp_path)
    tree.run("python", ".site/scripts/docs.py", "--site", ".site")
    tree.run("python", "-m", "mkdocs", "build", "--strict")
    assert "there is no folder" in (tmp_path / "site/docs/messages/index.html").read_text()
    page = (tmp_path / "site/docs/sites/jureca/index.html").read_text()
    assert "NCCL_SOCKET_IFNAME=ib0" in page
    assert not re.search(r'(src|href)="https?://[^"]*\.(js|css|woff2?)"', page), "nothing is loaded from elsewhere"
    (tmp_path / ".site/docs/troubleshooting.md").write_text("[nowhere](nothing.md)\n")
    assert "nothing.md" in tree.run("python", "-m", "mkdocs", "build", "--strict", check=False).stdout

"""The RO-Crate validator, in a separate environment because it needs other versions of packages; without a network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import rocrate

from helpers.common import ROOT

STORE = """
import io, sys
from pathlib import Path
import requests, urllib3
from requests_cache import CachedSession

class Stored(requests.adapters.BaseAdapter):
    def send(self, request, **_):
        response = requests.Response()
        response.status_code, response.url, response.request = 200, request.url, request
        response.headers["Content-Type"] = "application/ld+json"
        body = io.BytesIO(Path(sys.argv[2]).read_bytes().replace(b"https://bioschemas.org/terms/", b"https://bioschemas.org/"))
        response.raw = urllib3.HTTPResponse(body=body, status=200, preload_content=False, request_method="GET")
        return response
    def close(self):
        pass

session = CachedSession(cache_name=sys.argv[1])
session.mount("https://", Stored())
session.get("https://w3id.org/ro/crate/1.1/context")
"""
"""Puts the context that every crate names into the validator's cache: that of RO-Crate 1.3, which comes with rocrate,
with the names that version 1.1 has for Bioschemas."""


def complaints(crate, folder):
    """Violations of the profile that the validator finds in a crate; installs it into ``folder``."""
    python = folder / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", ROOT / "envs/validator.txt"], check=True)
    context = Path(rocrate.__file__).parent / "data/ro-crate.jsonld"
    cache = folder / "contexts"
    subprocess.run([python, "-c", STORE, cache, context], check=True)
    words = [
        "validate",
        "--offline",
        "--no-paging",
        "--output-format=json",
        "--profile-identifier",
        "workflow-run-crate",
        "--cache-path",
        cache,
    ]
    done = subprocess.run(
        [folder / "bin/rocrate-validator", *words, crate],
        env=os.environ | {"HOME": str(folder), "NO_COLOR": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return re.findall(r'"message": "(.*)"', done.stdout) or [done.stdout] * bool(done.returncode)

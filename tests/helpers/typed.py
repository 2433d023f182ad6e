"""Commands of the documents, checked without running them: Snakemake's by a dry run, programs by their argument parser.

Run as a program in a copy of the project: its argument is a JSON list of commands, its last output line the error of
each (null: none). With the word `call` the list is of Snakemake's arguments, the output how each call failed, and what
it wrote. Each is tried in a fork of a process that has imported the slow modules.
"""

import argparse
import json
import os
import re
import runpy
import shlex
import sys
import tempfile
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

from snakemake import cli

SHOWN = re.compile(
    r"(?:\w+=\S+ )*(?:\.venv/(?:\w+/)?bin/)?"
    r"(?:snakemake(?: |$)|make(?: |$)|shardlab \w|python \S+\.py|(?:scripts|benchmarks)/\S+\.py |--config )"
)
"""How inline code begins that is a command, or the arguments of one."""
ELIDED = "..."


def commands(text):
    """The commands of a document: lines of its console blocks and inline code, with placeholders unchanged."""
    lines = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines += block.replace("\\\n", " ").splitlines()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose))
    lines += [code for code in inline if SHOWN.match(code)]
    return list(dict.fromkeys(command for line in lines for command in _simple(line)))


def _simple(line):
    """The commands that a line joins with && and the like, without its comment."""
    reader = shlex.shlex(line, posix=True, punctuation_chars="&|")
    reader.whitespace_split = True
    groups = groupby(reader, lambda word: set(word) <= set("&|"))
    return [shlex.join(words) for joins, words in groups if not joins]


def words_of(command):
    """The words of a command from its program on: without variables, limits, and the folder of an environment."""
    words = shlex.split(command)
    while re.fullmatch(r"\w+=\S*|timeout|--signal=\w+|\d+", words[0]):
        words = words[1:]
    first = re.sub(r"^\.venv/(\w+/)?bin/", "", words[0])
    if first == "--config":
        return ["snakemake", "--config", "site=test", *words[1:]]
    if first.endswith(".py"):  # named in prose: some of its arguments may be left out
        return ["python", first, *words[1:], ELIDED]
    if first == "traindiff":
        return ["python", "scripts/traindiff", *words[1:]]
    if first == "shardlab":
        return ["python", "scripts/shardlab", *words[1:], *[ELIDED] * ("--" not in command)]
    return [first, *words[1:]]


def _tried(words):
    """Return the error of a command, or None."""
    wrong, said = captured(_dry_run if words[0] == "snakemake" else _parse, words[1:])
    return wrong and f"{wrong}: {said[-2000:]}"


def _called(words):
    """Return how a call of Snakemake failed, or None, and what it wrote."""
    sys.argv = ["snakemake", *words]
    return captured(cli.main, words)


def captured(act, *args):
    """Call a function in this process, which must be a fork; return how it failed, or None, and what it wrote."""
    with tempfile.TemporaryFile("w+") as said:
        for number in (1, 2):
            os.dup2(said.fileno(), number)
        wrong = None
        try:
            act(*args)
        except SystemExit as end:
            wrong = end.code or None
        except BaseException as error:
            wrong = repr(error)
        sys.stdout.flush()
        said.seek(0)
        return wrong, said.read()


def _dry_run(words):
    words = [word for word in words if word != ELIDED]
    sys.argv = ["snakemake", "--quiet", "all", "--dry-run", *words]
    cli.main(sys.argv[1:])


def _parse(words):
    """Parse arguments with a program's own parser; after ... the required ones may be missing."""
    parse = argparse.ArgumentParser.parse_known_args
    depth = []

    def parsed(parser, args=None, namespace=None):
        if ELIDED in words:
            for action in parser._actions:
                action.required = False
        depth.append(parser)
        found, others = parse(parser, args, namespace)
        depth.pop()
        if depth:  # a parser within the program's
            return found, others
        if others and words[1] != "launch":  # whose other words are the stage's
            parser.error(f"unrecognized arguments: {' '.join(others)}")
        raise SystemExit(0)

    sys.argv, sys.path[0] = [word for word in words if word != ELIDED], str(Path(words[0]).parent)
    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", parsed):
        runpy.run_path(words[0], run_name="__main__")
    raise SystemExit(f"{words[0]} parsed no arguments")


if __name__ == "__main__":
    sys.path[0] = str(Path("scripts").resolve())
    import altair  # noqa: F401
    import pandas  # noqa: F401
    import torch.distributed.fsdp  # noqa: F401

    from shardlab.settings import load, resolve

    resolve.matrix(load.config(load.read_yaml(load.CONFIG / "config.yaml")))
    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        act = _called if sys.argv[2:] == ["call"] else _tried
        print(json.dumps(pool.map(act, json.loads(sys.argv[1]), chunksize=1)))

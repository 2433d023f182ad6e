"""Documents that are followed to the letter: their blocks, and what a reader would do with each."""

import re
import subprocess


def follow(text, tree):
    """Write the files of a document into a copy of the project and apply its diffs; returns its commands.

    The first line of a file's block names it, ``>>`` before the name: lines to append.
    """
    commands = []
    for kind, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        if kind == "console":
            # What is installed as shardlab belongs to one clone, and this is a copy.
            lines = [line.replace(".venv/bin/", "") for line in block.splitlines()]
            commands += [re.sub(r"^shardlab ", "python scripts/shardlab ", line) for line in lines]
        elif kind == "diff":
            (tree.path / "change.diff").write_text(block)
            # If this fails: the lines around the change are others by now; edit them in the document.
            tree.run("git", "apply", "--verbose", "change.diff", GIT_CEILING_DIRECTORIES=str(tree.path.parent))
            (tree.path / "change.diff").unlink()
        else:
            first, rest = block.split("\n", 1)
            appended, name = re.fullmatch(r"# (>> )?(\S+)", first).groups()
            path = tree.path / name
            if appended:
                path.write_text(path.read_text() + rest)
            else:
                assert not path.exists(), name
                path.write_text(rest if name.endswith(".json") else block)  # JSON has no comments
    return commands


def section(path, heading):
    """The text below a heading of a document."""
    return path.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def without_twins(tree):
    """Let calls in a copy of the project leave out the runs that measure rounding, which documents do not speak of."""
    with (tree.path / "config/config.yaml").open("a") as file:
        file.write("noise_floor_runs: 0\n")


def readme(root, heading):
    """The commands of the first console block below a heading of README.md, without their comments."""
    block = re.search(r"```console\n(.*?)```", section(root / "README.md", heading), re.DOTALL)[1]
    return [re.sub(r"\s+#\s.*", "", line) for line in block.splitlines()]


def commit(tree):
    """Make a copy of the project a repository whose only commit is tagged v1; returns its folder."""
    git = ["git", "-c", "user.name=Someone", "-c", "user.email=someone@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=all"], ["tag", "v1"]):
        subprocess.run([*git, *words], cwd=tree.path, check=True)
    return tree.path

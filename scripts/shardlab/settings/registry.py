"""The files of models, readers, tasks and encoders that a configuration can name, in one table."""

from functools import cache

from shardlab.errors import unknown
from shardlab.files import ROOT

FOLDERS = {
    "model": ("scripts/shardlab/models", "class Model("),
    "reader": ("scripts/shardlab/data", "def read("),
    "task": ("scripts/shardlab/runtime/tasks", "class Task("),
    "encoder": ("scripts/shardlab/data/encoders", "def encode("),
}
"""Kind: the folder with one Python file per name, and the file's content; True if helpers' names begin with _."""


@cache
def names(kind: str) -> tuple[str, ...]:
    folder, defines = FOLDERS[kind]
    files = sorted(path for path in (ROOT / folder).glob("*.py") if not path.name.startswith("_"))
    return tuple(path.stem for path in files if defines in path.read_text(encoding="utf-8"))


def require(kind: str, name: str, where: str | None = None) -> None:
    """Raise a UserError, with ``where`` (default: the folder) and the closest name, unless the name exists."""
    if name not in names(kind):
        raise unknown(kind, name, names(kind), where or FOLDERS[kind][0])

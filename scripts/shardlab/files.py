"""Atomic file writes (temporary name, then rename), file locks and checksums."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from shardlab.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
"""The project's root folder."""
COMMAND = ROOT / "scripts/shardlab"
"""The command ``shardlab``, as a program of Python that needs no installation."""


HELD = (errno.EWOULDBLOCK, errno.EACCES)
"""Errors of flock when another process holds the lock; NFS, which emulates flock, raises EACCES."""


TICK = 2.0
"""Seconds within which two writes can leave the same times: the coarsest resolution of a file system's times."""
_digests: dict[tuple[int, ...], str] = {}


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Call ``write`` with a temporary path next to ``path``, sync it, rename it into place, and sync the folder.

    Whatever goes wrong, ``path`` is either unchanged or the whole new file. Its mode follows the umask, even if the
    library that writes it creates private files.

    Raises:
        UserError: the file could not be written (disk full, no permission, ...).
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with explained(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch()
            mode = stat.S_IMODE(temporary.stat().st_mode)
            write(temporary)
            temporary.chmod(mode)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        except Exception:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise a UserError for errors of the system while a file is written (disk full, no permission, ...)."""
    try:
        yield
    except Exception as error:
        # safetensors reports I/O errors as its own exception type, with the system's text inside.
        text = str(error)
        if isinstance(error, OSError) or "os error" in text.lower() or "I/O error" in text:
            raise UserError(
                f"{path} could not be written: {text}. Free space or quota there, or make the folder writable for you, "
                "then run the same command again; no partial file was left."
            ) from error
        raise


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Flush a folder with everything in it to disk: files first, then folders, innermost first."""
    for path in sorted(folder.rglob("*"), key=lambda path: (path.is_dir(), -len(path.parts))):
        sync(path)
    sync(folder)


def link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically; NaN, which is not JSON, is refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` atomically."""
    write_atomic(path, lambda temporary: _write_text(temporary, text))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def read_json(path: Path, what: str, remedy: str) -> Any:
    """Read one of the project's JSON files.

    Raises:
        UserError: it is missing, cannot be read or is not JSON; the message ends with ``remedy``.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing ({what}); {remedy}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({what}: {error.strerror}); {remedy}.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({what} is not JSON: {error}); {remedy}.") from None


@contextmanager
def lock(
    path: Path,
    doing: str,
    me: str | None = None,
    still: Callable[[str], bool] = lambda holder: False,
    patience: float = 0,
) -> Iterator[int]:
    """Hold a folder's lock file; the lock ends with this process and those that inherit its descriptor, however they
    end.

    ``me`` is the holder's name to write into it (default: this process and machine). ``still(holder)`` returns whether
    the last named holder is still running, for file systems that do not share locks between machines. Waits up to
    ``patience`` seconds for a holder to end. Yields the descriptor.

    Raises:
        UserError: another process holds it (``doing`` says what for: trained, downloaded), or its file system has no
            locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        free = flock(file, patience)
        file.seek(0)
        holder = file.read().strip()
        if not free or (holder and still(holder)):
            raise UserError(
                f"{path.parent} is being {doing} by {holder or 'another process'}; wait for it or end it."
            ) from None
        file.truncate(0)
        file.write(me or f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        try:
            yield file.fileno()
        finally:
            file.truncate(0)


def flock(file: IO[Any], patience: float = 0) -> bool:
    """Lock an open file, waiting up to ``patience`` seconds; return whether it succeeded.

    Raises:
        UserError: its file system has no locks. There is no substitute: a lock has to end with the process that holds
            it, however that ends.
    """
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in HELD:
                raise UserError(
                    f"{file.name} cannot be locked ({error.strerror}), so two trainings could write to one folder: its "
                    "file system has no file locks. Mount it with them (Lustre: -o flock), or put the project on "
                    "another file system."
                ) from None
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        else:
            return True


def sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file's content; a process reads a file once, unless it has changed.

    A file with the same inode, size and times is unchanged. One that was just written is not remembered: another write
    in the same tick of the clock would leave its times as they are (Git's index has the same problem, and solution).
    """
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if key in _digests:
            return _digests[key]
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time() - found.st_ctime > TICK:
        _digests[key] = digest
    return digest

"""Errors that the user can fix: one sentence, no traceback."""

import os
import re
import select
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches

IN_LOG = re.compile(r"^(?:\[\w+\]:)?(error: .*)$", re.MULTILINE)
"""The sentence that ``run_program`` ends with, in a log of one or several ranks."""


class UserError(Exception):
    """Bad input; the message names the key or file and what would work."""


class Unsupported(UserError):
    """A strategy that does not apply to a workload: an empty cell of the matrix, not a mistake."""


def choices(names: Iterable[str]) -> str:
    """Join sorted names for the end of an error message: ``a, b, c``."""
    return ", ".join(sorted(names))


def unknown(kind: str, name: str, known: Iterable[str], where: str) -> UserError:
    """Return the error for a name that does not exist, with the closest existing one."""
    known = list(known)
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return UserError(f"{where}: there is no {kind} {name!r}; {hint}known: {choices(known)}.")


PROFILE = "SHARDLAB_PROFILE"
"""Environment variable with the profile of the call of Snakemake that started this program."""


def remedy(action: str, target: object, *options: str) -> str:
    """Return ``ACTION with:`` and a call of Snakemake for a target, complete: with the profile of the current call."""
    local = "slurm" if "SLURM_JOB_ID" in os.environ else "workflow/profiles/local"
    words = ["snakemake", "--profile", os.environ.get(PROFILE, local), *options, str(target)]
    return f"{action} with: {' '.join(words)}, and the --config of your call"


def run_program(main: Callable[[], int | None]) -> None:
    """Run a program's ``main``; a UserError or a full disk ends it with one line and status 1, a reader of its output
    that ends first (``| head``) without a word.
    """
    try:
        status = main()
        sys.stdout.flush()
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        output = select.poll()
        output.register(1, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of the output
            sys.exit(1)
        sys.exit(f"error: {error.filename or 'file'}: {error.strerror or error}")
    # A forked rank must return: torchrun waits for its value, and sys.exit(None) has none.
    if status:
        sys.exit(status)

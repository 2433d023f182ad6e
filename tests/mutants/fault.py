"""A fault: a change of one place in the code, the tests that are asked about it, and its diagnosis."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """What the diagnosis of a fault that changes numbers must say, of the case that shows it in its first steps."""

    case: str
    """Strategy, workload, and optionally a recipe (accumulated: of the hard cases; thrice: in three micro-batches;
    reference: of the plain loop's; grouped, frozen, adapted, muon, smoothed: of the cases with these) and the number of
    ranks.
    """
    cause: str = ""
    """As in CHECKS of scripts/traindiff/formulas.py; empty: none may be named."""
    stage: str = ""
    """Where the first difference is, if no cause is named."""


@dataclass(frozen=True)
class Fault:
    """In ``file``, the one occurrence of ``right`` becomes ``wrong``."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]
    """Arguments of pytest: the fewest tests that catch it."""
    error: str = ""
    """Regular expression of the error that catches it, if neither a failed assertion nor the program's message does:
    PyTorch's, the simulated accelerator's, a time limit's.
    """
    diagnosis: Diagnosis | None = None
    unnamed: str = ""
    """Why the first steps do not show a fault that changes numbers."""

    def put_into(self, text: str) -> str:
        """Return the text of the file with the fault in it; exit if it does not apply or is not valid code."""
        if (count := text.count(self.right)) != 1:
            raise SystemExit(f"{self.name}: {self.file} has its text {count} times; write it as the code is now.")
        changed = text.replace(self.right, self.wrong)
        if changed == text:
            raise SystemExit(f"{self.name}: it changes nothing.")
        if self.file.endswith(".py"):
            try:
                compile(changed, self.file, "exec")
            except SyntaxError as error:
                raise SystemExit(f"{self.name}: it is no Python ({error}).") from None
        return changed

"""How a test failed: by what it asserts or by the program's own sentence, or because the fault crashes."""

import re
from dataclasses import dataclass
from pathlib import Path

OWN = {"AssertionError", "Failed", "UserError"}
"""Errors that catch a fault: of a test, of pytest.raises and the like, of the program."""
TOLD = re.compile(r"^\s*(?:E +|\S+\.py:\d+: |\[\w+\]:\s*)?([\w.]*(?:Error|Exception|Failed))(?::|$)", re.MULTILINE)
"""The errors in what another process printed: Python's last line, and pytest's where a test started another pytest."""
TIMEOUT = "Timeout (>"


@dataclass(frozen=True)
class Failure:
    """An error of a test, its set-up or its collection."""

    test: str
    names: tuple[str, ...]
    """Its class and the classes above it."""
    text: str
    origin: str = ""
    """File of the frame that raised it."""

    def catches(self, expected: str = "") -> bool:
        """True where the error shows what the fault does wrong.

        ``expected``: regular expression of an error that does, too, for a fault that PyTorch, the simulated
        accelerator or a time limit refuses.
        """
        if expected and re.search(expected, self.text):
            return True
        if self.text.startswith(TIMEOUT):
            return False
        if self.names[:1] == ("SystemExit",):
            return self.text.startswith("error: ")
        reported = {name.rpartition(".")[2] for name in TOLD.findall(self.text)}
        if "Traceback (most recent call last)" in self.text or "short test summary" in self.text:
            # Ranks whose neighbor failed say so, too: one error of the right kind is enough.
            return bool(reported & OWN) or (not reported and not OWN.isdisjoint(self.names))
        return not OWN.isdisjoint(self.names) and not _inside_a_package(self.origin)

    @property
    def sentence(self) -> str:
        """One line for people."""
        lines = [line for line in self.text.splitlines() if line.strip()] or [""]
        return f"{self.names[0]}: {lines[0][:200]}"


def _inside_a_package(origin: str) -> bool:
    """True for an assertion of a package about its own state, which is none about the numbers."""
    parts = Path(origin).parts
    return "site-packages" in parts and not {"testing", "_pytest", "hypothesis"} & {*parts}

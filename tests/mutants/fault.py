"""A fault: a change of one place in the code, and the tests that are asked about it."""

from dataclasses import dataclass

S = "scripts/shardlab/"
NATIVE, TENSOR, PIPELINE = f"{S}parallel/native.py", f"{S}parallel/tensor.py", f"{S}parallel/pipeline.py"
ZERO, FSDP, PARALLELIZE = f"{S}parallel/zero.py", f"{S}parallel/fsdp.py", f"{S}parallel/parallelize.py"
BATCHES, CHECKPOINT = f"{S}runtime/batches.py", f"{S}train/checkpoint.py"
RESUMING = f"{S}train/resume.py"
ORDER = f"{S}data/order.py"
EVALUATION, RECIPE, MODELS = f"{S}train/evaluation.py", f"{S}settings/recipe.py", f"{S}models"
STEP = f"{S}train/step.py"
MUON = f"{S}runtime/muon.py"
LOSSES = f"{S}models/_losses.py"


def at(file: str, *tests: str) -> tuple[str, ...]:
    """Tests of a file."""
    return tuple(f"tests/{file}.py::{test}" for test in tests)


def reference(workload: str) -> tuple[str, ...]:
    """Equality of ``single`` with the plain loop."""
    return at("parity/test_reference", f"test_single_equals_a_plain_loop[{workload}]")


def parity(name: str) -> tuple[str, ...]:
    """Equality of a case of the parity suite with one device."""
    return at("parity/test_parity", f"test_equals_one_device[{name}]")


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

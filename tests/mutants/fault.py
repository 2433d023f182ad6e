"""A fault: a change of one place in the code, and the tests that are asked about it."""

from dataclasses import dataclass

S = "scripts/shardlab/"
NATIVE, TENSOR, PIPELINE = f"{S}strategies/native.py", f"{S}strategies/tensor.py", f"{S}strategies/pipeline.py"
ZERO, FSDP, PARALLELIZE = f"{S}strategies/zero.py", f"{S}strategies/fsdp.py", f"{S}strategies/parallelize.py"
BATCHES, CHECKPOINT, TASKS = f"{S}training/batches.py", f"{S}training/checkpoint.py", f"{S}training/tasks"
RESUMING = f"{S}training/resume.py"
ORDER, MESH, RATE = f"{S}data/order.py", f"{S}settings/mesh.py", f"{S}settings/learning_rate.py"
EVALUATION, RECIPE, MODELS = f"{S}training/evaluation.py", f"{S}settings/recipe.py", f"{S}models"
STEP, SUMMARY, VERDICT = f"{S}training/step.py", f"{S}report/summary.py", f"{S}report/verdict.py"

REFERENCE = ("tests/parity/test_reference.py",)
DROPOUT = ("tests/parity/test_dropout.py",)
RESUME = ("tests/parity/test_resume.py", "-k", "single-fsdp or zero3-single")
CHECKPOINTS = ("tests/unit/test_checkpoints.py",)
TABLE = ("tests/unit/test_summary.py",)
DATA = ("tests/unit/test_embedded_data.py",)


def parity(names: str) -> tuple[str, ...]:
    """Cases of the parity suite."""
    return ("tests/parity/test_parity.py", "-k", names)


@dataclass(frozen=True)
class Fault:
    """In ``file``, the one occurrence of ``right`` becomes ``wrong``."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]
    """What pytest is asked to run: as few tests as catch it."""
    error: str = ""
    """Regular expression of the error that catches it, where that is no failed assertion and no sentence of the
    program: PyTorch's, the simulated accelerator's, a time limit's.
    """

    def put_into(self, text: str) -> str:
        """The text of the file with the fault in it; without its place there, or where it is no code, the end."""
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

"""Change one operator, number or item of the judging code at a time: python tests/mutants/operators.py

Prints each change that no test of its layer fails with. Unlike the faults of this folder, these have no meaning: what
is printed is a threshold, or a quantity, that no test knows, unless the change makes no difference.
"""

import argparse
import ast
import tempfile
from copy import copy
from pathlib import Path

import running
from fault import Fault
from faults import S
from running import Run

LAYERS = {
    (f"{S}report/verdict.py", f"{S}report/summary.py", f"{S}cli/summarize.py", f"{S}report/summary_markdown.py"): (
        "tests/unit/test_summary.py",
        "tests/unit/test_low_precision.py",
    ),
    (f"{S}models/weights_difference.py",): ("tests/unit/test_weights_difference.py",),
    (f"{S}train/perturbed.py",): ("tests/unit/test_noise_floor.py",),
    ("scripts/traindiff/comparison.py", "scripts/traindiff/pair.py"): ("tests/traindiff",),
    (f"{S}runs/attempts.py",): ("tests/unit/test_attempts.py",),
    (f"{S}data/order.py",): ("tests/unit/test_order.py",),
    (f"{S}settings/learning_rate.py",): ("tests/unit/test_learning_rate.py",),
    (f"{S}records/train_report.py", f"{S}records/done.py"): (
        "tests/unit/test_records.py",
        "tests/unit/test_summary.py",
        "tests/unit/test_attempts.py",
        "tests/unit/test_initial_weights.py",
    ),
    (f"{S}report/recommendation.py", f"{S}report/sweep_table.py"): (
        "tests/unit/test_report.py",
        "tests/unit/test_sweep.py",
    ),
    (f"{S}proof/of_workload.py",): ("tests/unit/test_model_folders.py",),
    (f"{S}records/manifest.py",): ("tests/unit/test_checkpoints.py",),
    (f"{S}records/script_lines.py",): ("tests/unit/test_script_contract.py",),
    (f"{S}runs/slurm.py",): ("tests/unit/test_slurm_limits.py", "tests/unit/test_slurm_reattach.py"),
}
"""Files: the tests that judge the judges."""
OTHER = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Add: ast.Sub, ast.Sub: ast.Add},
}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "abs": ""}


def changed(node):
    """Yield the source of what may stand in the place of a node."""
    new = copy(node)
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OTHER:
            new.ops = [OTHER[type(operator)]()]
        case ast.BinOp(op=operator) if type(operator) in OTHER:
            new.op = OTHER[type(operator)]()
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            new.func = ast.Name(SWAPPED[name])
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            yield from map(repr, (1 - value,) if value in (0, 1) else (10 * value, value / 10))
            return
        case (
            ast.BoolOp(values=items)
            | ast.Tuple(elts=items, ctx=ast.Load())
            | ast.List(elts=items)
            | ast.Dict(values=items)
        ):
            for number in range(len(items) if len(items) > 1 else 0):
                for field in {"values", "elts", "keys"} & {*vars(node)}:
                    setattr(new, field, [each for at, each in enumerate(getattr(node, field)) if at != number])
                yield f"({ast.unparse(new)})"
            return
        case ast.If():
            yield "False"
            return
        case _:
            return
    yield f"({ast.unparse(new)})"


def faults(file, tests):
    """Yield the changes of a file."""
    source = (running.ROOT / file).read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)

    def place(line, column):
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    for node in ast.walk(ast.parse(source)):
        for text in changed(node):
            old = node.test if isinstance(node, ast.If) else node
            begin, end = place(old.lineno, old.col_offset), place(old.end_lineno, old.end_col_offset)
            name = f"{file}:{old.lineno}: {' '.join(source[begin:end].split())} -> {text}"
            yield Fault(name, file, source, source[:begin] + text + source[end:], tests)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default="", help="only files with this in their path")
    part = parser.parse_args().file
    every = [each for files, tests in LAYERS.items() for file in files if part in file for each in faults(file, tests)]
    running.warm()
    with tempfile.TemporaryDirectory(prefix="operators-") as place:
        runs = running.work_off([Run(fault.tests, fault) for fault in every], running.copies(Path(place)))
        for run in runs:
            if not run.failures:
                print(run.fault.name, flush=True)
    print(f"of {len(every)} changes")


if __name__ == "__main__":
    main()

"""Put faults into a copy of the code, one at a time, and say which test catches each: python tests/mutants [WORDS]

With WORDS only the faults whose name has them. First their tests run without a fault, and all must pass. A fault is
caught by a failed assertion or by the program's own sentence, not by a crash (judge.py). Ends with status 1 if one is
not caught.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}

import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import running
from faults import FAULTS
from running import Run

ROOT = Path(__file__).resolve().parents[2]
COPIES = len(os.sched_getaffinity(0))


def main():
    began = time.monotonic()
    words = " ".join(sys.argv[1:])
    faults = [fault for fault in FAULTS if words in fault.name]
    if not faults:
        sys.exit(f"No fault has `{words}` in its name.")
    for fault in faults:
        fault.put_into((ROOT / fault.file).read_text(encoding="utf-8"))
    running.warm()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copies = [copy(Path(place) / f"copy{number}") for number in range(COPIES)]
        check(faults, copies)
        runs = [Run(fault.tests, fault) for fault in faults]
        missed = [run.fault.name for run in running.work_off(runs, copies) if not caught(run)]
    took = f" in {time.monotonic() - began:.0f} s"
    print(
        f"{len(faults) - len(missed)} of {len(faults)} faults were caught{took}"
        + (f"; not: {missed}" if missed else "")
    )
    sys.exit(bool(missed))


def copy(folder):
    """A copy of the project's files."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, text=True, capture_output=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def check(faults, copies):
    """Run the tests of all faults without one; ends the program where one does not pass."""
    tests = defaultdict(dict)
    for fault in faults:
        for test in fault.tests:
            tests[test.partition("::")[0]][test] = None
    wrong = []
    for run in running.work_off([Run((*of_file,)) for of_file in tests.values()], copies):
        wrong += [f"{failure.test}: {failure.sentence}\n{run.output[-1500:]}" for failure in run.failures]
        wrong += [f"{test} is skipped: {why}" for test, why in run.skipped.items()]
    if wrong:
        sys.exit("Without a fault these tests do not pass, so that they prove nothing:\n" + "\n".join(wrong))
    print(f"{sum(map(len, tests.values()))} tests pass without a fault", flush=True)


def caught(run):
    """True if a test catches the run's fault; prints which, or what happened instead."""
    failure = next((each for each in run.failures if each.catches(run.fault.error)), None)
    if failure:
        print(f"{run.fault.name}: {failure.test} ({failure.sentence}) {run.seconds:.0f} s", flush=True)
        return True
    why = "; ".join(f"{each.test} crashed with {each.sentence}" for each in run.failures) or "its tests pass"
    print(f"{run.fault.name}: NOT CAUGHT, {why}\n{run.output[-1500:] if run.failures else ''}", flush=True)
    return False


if __name__ == "__main__":
    main()

"""Put faults into a copy of the code, one at a time, and say which test catches each: python tests/mutants [WORDS]

With WORDS only the faults whose name has them. First their tests run without a fault, and all must pass. A fault is
caught by a failed assertion or by the program's own sentence, not by a crash (judge.py). Ends with status 1 if one is
not caught, if a diagnosis names a wrong cause, or, without WORDS, if too few of the faults that change numbers are
diagnosed as they should be.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
os.environ.pop("PYTHONPATH", None)  # programs that the tests start are those of the copy

import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import diagnosing
import running
from faults import FAULTS
from running import Run

LEAST = 0.8
"""Least part of the faults that change numbers whose diagnosis names the right cause, or only the right place."""


def main():
    began = time.monotonic()
    words = " ".join(sys.argv[1:])
    faults = [fault for fault in FAULTS if words in fault.name]
    if not faults:
        sys.exit(f"No fault has `{words}` in its name.")
    for fault in faults:
        fault.put_into((running.ROOT / fault.file).read_text(encoding="utf-8"))
    running.warm()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copies = running.copies(Path(place))
        check(faults, copies)
        found = diagnosed(faults, copies, Path(place) / "captures")
        runs = [Run(fault.tests, fault) for fault in faults]
        missed = [run.fault.name for run in running.work_off(runs, copies) if not caught(run, found)]
    took = f" in {time.monotonic() - began:.0f} s"
    print(
        f"{len(faults) - len(missed)} of {len(faults)} faults were caught{took}"
        + (f"; not: {missed}" if missed else "")
    )
    part, wrong = named(faults, found)
    sys.exit(bool(missed or wrong) or (part < LEAST and not words))


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


def diagnosed(faults, copies, place):
    """Return what the diagnosis of each fault that changes numbers finds, by the fault's name."""
    faults = [fault for fault in faults if fault.diagnosis]
    cases = [*dict.fromkeys(fault.diagnosis.case for fault in faults)]
    if not cases:
        return {}
    diagnosing.prepare(copies[0], place / "data")
    shares = [share for number in range(len(copies)) if (share := cases[number :: len(copies)])]
    for run in running.work_off([Run((), task=("capture references", share, place)) for share in shares], copies):
        if run.failures:
            sys.exit(f"The code without a fault cannot be captured:\n{run.output[-3000:]}")
    runs = [Run((), fault, ("diagnose", fault.diagnosis.case, place)) for fault in faults]
    return {run.fault.name: run.found for run in running.work_off(runs, copies)}


def named(faults, found):
    """Return the part of the faults that change numbers that are diagnosed as they should be, and the number of those
    whose diagnosis names a wrong cause; prints the numbers.
    """
    changes_numbers = [fault for fault in faults if fault.diagnosis or fault.unnamed]
    if not changes_numbers:
        return 1.0, 0
    diagnosed = [fault for fault in faults if fault.diagnosis]
    right = [fault for fault in diagnosed if is_right(fault.diagnosis, found[fault.name])]
    causes = [fault for fault in right if fault.diagnosis.cause]
    wrong = [fault.name for fault in diagnosed if fault not in right and found[fault.name].get("causes")]
    print(
        f"Of {len(changes_numbers)} faults that change numbers, {len(causes)} are diagnosed with the right cause, "
        f"{len(right) - len(causes)} by their place, {len(wrong)} with a wrong cause" + (f": {wrong}" if wrong else "")
    )
    return len(right) / len(changes_numbers), len(wrong)


def is_right(expected, found):
    """True if a diagnosis names the cause that it should, or only the place."""
    causes = found.get("causes", [])
    return (
        expected.cause in causes
        if expected.cause
        else not causes and (found.get("first") or [0, ""])[1] == expected.stage
    )


def of_diagnosis(fault, found):
    """Return what the diagnosis of a fault says, as text."""
    if fault.unnamed:
        return f"; not diagnosed: {fault.unnamed}"
    if fault.name not in found:
        return ""
    sentence, expected = found[fault.name].get("sentence", "it crashes"), fault.diagnosis
    if is_right(expected, found[fault.name]):
        return f"; diagnosis: {sentence}"
    return f"; DIAGNOSIS SHOULD SAY {expected.cause or expected.stage}: {sentence}"


def caught(run, found):
    """True if a test catches the run's fault; prints which, or what happened instead, and the fault's diagnosis."""
    says = of_diagnosis(run.fault, found)
    failure = next((each for each in run.failures if each.catches(run.fault.error)), None)
    if failure:
        print(f"{run.fault.name}: {failure.test} ({failure.sentence}) {run.seconds:.0f} s{says}", flush=True)
        return True
    why = "; ".join(f"{each.test} crashed with {each.sentence}" for each in run.failures) or "its tests pass"
    print(f"{run.fault.name}: NOT CAUGHT, {why}\n{run.output[-1500:] if run.failures else ''}", flush=True)
    return False


if __name__ == "__main__":
    main()

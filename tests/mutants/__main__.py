"""Put faults into a copy of the code, one at a time, and say which test catches each: python tests/mutants [WORDS]

With WORDS only the faults whose name has them. Ends with status 1 if one is not caught.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
COPIES = len(os.sched_getaffinity(0))


def main():
    words = " ".join(sys.argv[1:])
    faults = [fault for fault in FAULTS if words in fault.name]
    with tempfile.TemporaryDirectory() as place:
        copies = Queue()
        for number in range(COPIES):
            copies.put(copy(Path(place) / f"copy{number}"))
        with ThreadPoolExecutor(COPIES) as pool:
            found = list(pool.map(lambda fault: caught(fault, copies), faults))
    missed = [fault.name for fault, test in zip(faults, found, strict=True) if test is None]
    print(f"{len(faults) - len(missed)} of {len(faults)} faults were caught" + (f"; not: {missed}" if missed else ""))
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


def caught(fault, copies):
    """The test that fails with a fault, or None; prints it."""
    folder = copies.get()
    path = folder / fault.file
    text = path.read_text()
    path.write_text(changed(fault, text))
    command = [sys.executable, "-m", "pytest", "-x", "-rfE", "-p", "no:cacheprovider", *fault.tests]
    done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    path.write_text(text)
    copies.put(folder)
    test = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and test:
        print(f"{fault.name}: {test[1]}", flush=True)
        return test[1]
    print(f"{fault.name}: NOT CAUGHT (pytest ended with {done.returncode})\n{done.stdout[-1500:]}", flush=True)
    return None


def changed(fault, text):
    """The text of a file with a fault in it."""
    count = text.count(fault.right)
    if count != 1:
        raise ValueError(f"{fault.name}: {fault.file} has its text {count} times")
    return text.replace(fault.right, fault.wrong)


if __name__ == "__main__":
    main()

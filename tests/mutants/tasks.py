"""What a fork does instead of tests."""

import json
import shutil

import diagnosing
import measuring


def work(kind, value, place, copy, notes, ranks):
    """Do one task in a fork: of "references" or a fault, to "capture" and diagnose or to "train" (measuring.py).

    ``ranks`` starts what forks the ranks.
    """
    diagnosing.use(copy)
    import group

    group.start = lambda _: ranks()
    found = {}
    if kind == "capture references":
        diagnosing.capture_references(value, place)
    elif kind == "train references":
        measuring.train_references(value, place)
    elif kind == "train":
        measuring.train(*value, place)
    else:
        scratch = copy.with_suffix(".diagnosis")
        shutil.rmtree(scratch, ignore_errors=True)
        found = diagnosing.diagnose(value, place, scratch)
    notes.write_text(json.dumps(found))

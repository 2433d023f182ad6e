"""What proofs at tiny sizes (proof/) found of a workload whose model is one of transformers: which strategies must not
train it.
"""

from pathlib import Path

from shardlab.files import read_json
from shardlab.settings.types import Run

FILE = "proofs.json"
REFUSED = "refused"
"""Key of the file: {strategy: why it must not train the workload}."""


def needs_proof(run: Run) -> bool:
    """Return whether strategies are proven before they train a run's model."""
    return run.model.folder is not None


def refusals(workload: str) -> dict[str, str]:
    """Return {strategy: why it must not train a workload}, as far as proofs were made; ``workload``: as in
    results/init.

    Raises:
        UserError: the file with the proofs is damaged.
    """
    path = Path("results/init") / workload / FILE
    if not path.exists():
        return {}
    found: dict[str, dict[str, str]] = read_json(path, "proofs at tiny sizes", "delete it, and they are made again")
    return found[REFUSED]

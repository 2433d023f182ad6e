"""Check which strategies train a transformers model as one process does.

The same class at tiny sizes, in float64, on ranks of this machine: loss, the
gradient of every parameter, gradient norm and first update. Reads config.json
alone, no weights. Prints a line per strategy: equal, refused (and why), differs
(which parameter, by how much) or failed; status 1 if one differs or failed.
"""

import argparse
import tempfile
from pathlib import Path

from shardlab.errors import UserError
from shardlab.settings import load, pretrained


def main() -> int:
    """Prove and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="hf:owner/name, or a folder with config.json")
    parser.add_argument("--strategies", nargs="+", default=[], metavar="NAME", help="default: all but ZeRO and scripts")
    args = parser.parse_args()
    folder = Path(pretrained.folder_of(args.model) or args.model)
    if not (folder / "config.json").exists():
        raise UserError(f"{folder}/config.json does not exist; name a folder written by save_pretrained.")
    names = args.strategies or [name for name in load.own_strategies() if load.strategy(name).engine == "torch"]
    # Imports take seconds.
    from shardlab.proof import proof_table, tiny_config
    from shardlab.proof.prove import prove

    with tempfile.TemporaryDirectory() as scratch:
        tiny_config.write(tiny_config.read(folder), Path(scratch))
        proofs = []
        print(proof_table.HEAD, flush=True)
        for proof in prove(Path(scratch), dict.fromkeys(names)):
            proofs.append(proof)
            print(proof_table.line(proof), flush=True)
    print("\n".join(["", *proof_table.summary(proofs)]))
    return int(any(proof.verdict in ("differs", "failed") for proof in proofs))

"""Check which strategies train a transformers model as one process does.

The same class at tiny sizes, in float64, on ranks of this machine: loss, the
gradient of every parameter, gradient norm and first update. Reads config.json
alone, no weights. Prints a line per strategy: equal, refused (and why), differs
(which parameter, by how much) or failed; status 1 if one differs or failed.
"""

import argparse
import tempfile
from pathlib import Path

from shardlab.data import hub_download
from shardlab.errors import UserError
from shardlab.settings import load, pretrained
from shardlab.settings.types import Model


def main() -> int:
    """Prove and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="hf:owner/name of the hub, or a folder with config.json")
    parser.add_argument("--revision", default="main", help="commit or branch of the hub's repository")
    parser.add_argument("--strategies", nargs="+", default=[], metavar="NAME", help="default: all but ZeRO and scripts")
    args = parser.parse_args()
    names = args.strategies or [name for name in load.own_strategies() if load.strategy(name).engine == "torch"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = config_folder(args.model, args.revision, Path(scratch) / "hub")
        # Imports take seconds.
        from shardlab.proof import proof_table, tiny_config
        from shardlab.proof.prove import prove
        from shardlab.proof.tiny_runs import Written

        tiny = Path(scratch) / "tiny"
        config = tiny_config.read(folder)
        written = Written([], {}, tiny_config.task_of(config))
        tiny_config.write(config, tiny)
        proofs = []
        print("\n".join([*tiny_config.unproven(config), proof_table.HEAD]), flush=True)
        for proof in prove(tiny, dict.fromkeys(names), written):
            proofs.append(proof)
            print(proof_table.line(proof), flush=True)
    print("\n".join(["", *proof_table.summary(proofs)]))
    return int(any(proof.verdict in ("differs", "failed") for proof in proofs))


def config_folder(name: str, revision: str, downloads: Path) -> Path:
    """Return the folder with a model's config.json: the user's or that of an earlier download, else a new one.

    Raises:
        UserError: there is none, or the hub cannot be reached.
    """
    folder = Path(pretrained.folder_of(name) or name)
    if (folder / "config.json").exists():
        return folder
    if not pretrained.is_pretrained(name):
        raise UserError(
            f"{folder}/config.json does not exist; name a folder written by save_pretrained, or a repository of the "
            "hub as hf:owner/name."
        )
    model = Model(name=name, args={"pretrained": False, "revision": revision}, blocks=[], tensor={}, segments=0)
    hub_download.download_model(pretrained.settings(model, "check-model"), downloads)
    return downloads

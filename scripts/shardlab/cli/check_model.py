"""Check which strategies train a transformers model as one process does.

The same class at tiny sizes, in float64, on ranks of this machine: loss, the
gradient of every parameter, gradient norm and first update. Reads config.json
alone, no weights. Prints a line per strategy: equal, refused (and why), differs
(which parameter, by how much) or failed; status 1 if one differs or failed.
"""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardlab.cli import program
from shardlab.data import hub_download
from shardlab.errors import UserError
from shardlab.files import read_json
from shardlab.settings import load, pretrained
from shardlab.settings.types import Model, read_run

if TYPE_CHECKING:
    from shardlab.proof.prove import Proof


@program
def main(
    model: Annotated[str, "hf:owner/name of the hub, or a folder with config.json"],
    /,
    revision: Annotated[str, "commit or branch of the hub's repository"] = "main",
    strategies: Annotated[Sequence[str], "default: all but ZeRO and scripts"] = (),
) -> int:
    """Prove and print."""
    names = provable(strategies)
    with tempfile.TemporaryDirectory() as scratch:
        folder = config_folder(model, revision, Path(scratch) / "hub")
        try:
            proofs = proven(folder, names, Path(scratch) / "tiny")
        except Exception as error:
            said = str(error)
            if not isinstance(error, UserError):  # of the library, or of sizes that proof/ does not foresee
                line = (said.strip().splitlines() or ["no reason"])[0]
                said = (
                    f"it cannot be proven at tiny sizes ({type(error).__name__}: {line}); only a training shows more."
                )
            # In the words of the caller, who has never seen the folders here.
            said = re.sub(rf"(hf:)?{re.escape(scratch)}/\w+", lambda _: model, said)
            raise UserError(said if str(folder) in said else f"{model}: {said}") from error
    return int(any(proof.verdict in ("differs", "failed") for proof in proofs))


def provable(names: Sequence[str]) -> list[str]:
    """Return the strategies to prove: these, or without a name all that can be.

    Raises:
        UserError: a name is no strategy's, or that of one that is not proven; or there is none that is.
    """
    every = [name for name in load.own_strategies() if load.strategy(name).engine == "torch"]
    for name in names:
        settings = load.variant_of_strategy(name)
        if settings.script or settings.engine != "torch":
            kind = "a script" if settings.script else f"trained by {settings.engine}"
            raise UserError(f"--strategies: {name} is {kind}, and only PyTorch's strategies are proven; leave it out.")
    if not (names or every):
        raise UserError("config/strategies.yaml has only ZeRO and scripts, which are not proven; add a strategy.")
    return [*(names or every)]


def proven(folder: Path, names: list[str], tiny: Path) -> "list[Proof]":
    """Prove strategies on the model of a folder, made tiny in another one, and print each proof as it is made.

    Raises:
        UserError: config.json describes no model of the library, or none that can be made tiny or trained for a step;
            or quantized weights.
    """
    # Imports take seconds.
    from shardlab.models import _transformers
    from shardlab.proof import prove as of_model
    from shardlab.proof import tiny_config
    from shardlab.proof.step_on_ranks import Written

    pretrained.check_plain(folder)
    config, _ = _transformers.configuration(folder, {})
    written = Written([], {}, tiny_config.task_of(config), layerdrop=tiny_config.layerdrop(config))
    trained = _transformers.check(written.task, str(folder), {}).__name__
    for named in config.architectures or []:
        if tiny_config.is_of_another_task(named, trained):
            raise UserError(
                f"{folder}/config.json: no task trains a {named} (architectures); name a folder of a {trained}, or "
                "remove the key to have that proven."
            )
    print(f"class: {trained}")
    unread = _transformers.unread(written.task, str(folder), {})
    tiny_config.write(config, tiny, unread=unread)
    proofs: list[Proof] = []
    above = tiny_config.about(config, unread=unread)
    lines = [of_model.HEAD]
    for proof in of_model.prove(tiny, dict.fromkeys(names), written):
        proofs.append(proof)
        lines.append(of_model.line(proof))
        if any(each.verdict != "refused" for each in proofs):  # what proofs exceed is said where there are some
            print("\n".join(above + lines), flush=True)
            above, lines = [], []
    print("\n".join(above[: bool(unread)] + lines), end="\n" * bool(lines))
    print("\n".join(["", *of_model.summary(proofs), "No weights were read: a training refuses those that do not fit."]))
    return proofs


def config_folder(name: str, revision: str, downloads: Path) -> Path:
    """Return the folder with a model's config.json: the user's or that of an earlier download, else a new one.

    Raises:
        UserError: there is none, or the hub cannot be reached.
    """
    folder = Path(pretrained.folder_of(name) or name)
    if (folder / "config.json").exists():
        return folder
    if not pretrained.is_pretrained(name):
        raise UserError(pretrained.no_model(folder, str(folder)))
    model = Model(name=name, args={"pretrained": False, "revision": revision}, blocks=[], tensor={}, segments=0)
    hub_download.download_model(pretrained.settings(model, "check-model"), downloads)
    return downloads


@program
def prove(settings: Path, strategies: Path, output: Path) -> None:
    """Prove on a tiny model which strategies may train a workload of transformers (see check-model).

    Writes the table, and proofs.json next to it. A strategy that is refused there is not trained.
    """
    # Imports take seconds.
    from shardlab.models import _transformers
    from shardlab.proof import prove as of_model
    from shardlab.proof import tiny_config

    run = read_run(settings)
    listed = read_json(strategies, "strategies to prove", "run the workflow, which writes it")
    parts = max((each["tensor_parts"] for each in listed.values()), default=1)
    proofs = of_model.check(run, listed, output.with_name(pretrained.PROOFS), parts)
    folder, changes = str(run.model.folder), run.model.args
    config, _ = _transformers.configuration(folder, changes)
    unread = _transformers.unread(run.task, folder, changes)
    above = tiny_config.about(config, of_model.longest(run), unread) if any(p.trained for p in proofs) else []
    above.append(of_model.HEAD)
    table = "\n".join([*above, *map(of_model.line, proofs), "", *of_model.summary(proofs)])
    print(table)
    output.write_text(f"{table}\n", encoding="utf-8")

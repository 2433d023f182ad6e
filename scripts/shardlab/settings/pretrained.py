"""Transformers models of the user, ``hf:<repository or folder>``: their folder, what they are asked for, and which
strategies must not train them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardlab.errors import UserError, choices, remedy
from shardlab.files import ROOT, read_json
from shardlab.settings import run_identity
from shardlab.settings.types import CAUSAL, Model, Run, Workload

MODELS = Path("data/models")
OF_TOKENS = re.compile(
    r"vocab_size|(pad|bos|eos|decoder_start)_token_id|n_positions|max_(\w+_)?position_embeddings|max_seq_len"
)
"""Keys of a model's config.json that decide which tokens it takes."""
TEXT_TASKS = (*CAUSAL, "summarization")
"""Tasks whose data is encoded by the model's own tokenizer."""
EXPORTED = ("llama", "moe")
"""The project's models that have a counterpart in transformers."""
PROOFS, OF, REFUSED = "proofs.json", "of", "refused"
"""File of what proofs at tiny sizes (proof/) found of a workload, and its keys: what they are of (``of_proofs``), and
{strategy: why it must not train}.
"""


def is_pretrained(name: str) -> bool:
    """Return whether a workload's model is a transformers model."""
    return name.startswith("hf:")


def folder_of(name: str) -> str | None:
    """Return the folder of a workload's model: the user's, from the folder of the call or of the project, or the one
    its repository is downloaded to; None without hf:.
    """
    if not is_pretrained(name):
        return None
    place = name.removeprefix("hf:")
    if not _is_folder(place):
        return str(MODELS / place.replace("/", "--"))
    return str(ROOT / place) if (ROOT / place).exists() and not Path(place).exists() else place


def _is_folder(place: str) -> bool:
    return place[0] in "/."


def names_experts(name: str) -> bool:
    """Return whether the config.json of a transformers model has a key of experts; True if it is not downloaded yet."""
    path = Path(str(folder_of(name))) / "config.json"
    return not path.exists() or b"expert" in path.read_bytes()


def read_keys(folder: Path) -> dict[str, Any]:
    """Return the keys of a transformers model's config.json.

    Raises:
        UserError: it is missing, or no object of JSON.
    """
    path, use = folder / "config.json", "name a folder written by save_pretrained"
    if folder.parent == MODELS:
        use = remedy("download it from the hub", folder / "download.json")
    keys: Any = read_json(path, "the model's configuration", use)
    if not isinstance(keys, dict):
        raise UserError(f"{path} is {keys!r:.40}, no object of JSON; {use}.")
    return keys


DEQUANTIZED = ("mxfp4",)
"""Methods of quantization whose weights the library reads as bfloat16, unless it has kernels for them."""


def check_plain(folder: Path) -> None:
    """Check that a transformers model's folder has one set of weights, not quantized, and no adapter beside them.

    Raises:
        UserError: it has not.
    """
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{folder} has an adapter beside its model, which the library puts into it; remove adapter_config.json, or "
            "name a folder that merge_and_unload().save_pretrained wrote."
        )
    if (folder / "model.safetensors").exists() and (folder / "model.safetensors.index.json").exists():
        raise UserError(
            f"{folder} has weights twice, in model.safetensors and in the files of model.safetensors.index.json, of "
            "which the library reads the first alone; remove one of the two."
        )
    found = read_keys(folder).get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else found
    if found and method not in DEQUANTIZED:
        raise UserError(
            f"{folder}/config.json has quantization_config ({method}), and no strategy trains quantized weights; name "
            "the model that was quantized, or if the weights of this folder are not quantized, remove the key; or draw "
            "new weights with `pretrained: false` under `model:`."
        )


def no_model(folder: Path, shown: str) -> str:
    """Return what works instead of a folder without config.json, in which there may be an adapter."""
    if (folder / "adapter_config.json").exists():
        return (
            f"{shown} has an adapter and no model; name its base_model_name_or_path (adapter_config.json), or a folder "
            "that merge_and_unload().save_pretrained wrote."
        )
    return (
        f"{shown}/config.json does not exist; name a folder written by save_pretrained, or a repository of the hub as "
        "hf:owner/name."
    )


def tokenizer_of(workload: Workload, args: Mapping[str, Any]) -> str | None:
    """Return the folder of the tokenizer that encodes a workload's texts: its model's; None: one is trained, also where
    a folder with fresh weights (``args``: those of the model) has none.
    """
    folder = folder_of(workload.model)
    if folder is None or workload.task not in TEXT_TASKS:
        return None
    is_users = folder == workload.model.removeprefix("hf:")
    if is_users and args.get("pretrained") is False and not (Path(folder) / "tokenizer.json").exists():
        return None
    return folder


def settings(model: Model, where: str) -> Model:
    """Fill in folder and repository of ``model``, and remove from args the keys that config.json does not have.

    Raises:
        UserError: the folder does not exist or has no model, or the name is not a repository's; names ``where``. Or the
            weights are quantized.
    """
    place, folder = model.name.removeprefix("hf:"), folder_of(model.name)
    args = dict(model.args)
    source = {"folder": folder, "pretrained": bool(args.pop("pretrained", True))}
    revision = args.pop("revision", "main")
    if _is_folder(place):
        if not (Path(str(folder)) / "config.json").exists():
            raise UserError(f"{where}: model: {no_model(Path(str(folder)), place)}")
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        source |= {"repo": place, "revision": revision}
    else:
        raise UserError(
            f"{where}: model: {model.name} is not hf:owner/name, and a folder begins with / or a dot; use one of these."
        )
    if source["pretrained"] and (Path(str(folder)) / "config.json").exists():
        check_plain(Path(str(folder)))
    return model.model_copy(update={**source, "args": args})


def check_export(model: Model) -> None:
    """Check that transformers can load a model's weights.

    Raises:
        UserError: the model has no counterpart there.
    """
    if model.folder is None and model.name not in EXPORTED:
        raise UserError(
            f"model {model.name} has no counterpart in transformers; models that have one: {choices(EXPORTED)}, hf:."
        )
    if model.name == "moe" and moe_class(model.args) is None:
        raise UserError(
            "model moe with these arguments has no counterpart in transformers; export needs softmax scores with "
            "normalized weights, no shared experts, no bias_rate and no scale (Mixtral), or sigmoid scores with shared "
            "experts (GLM-4.5)."
        )


def moe_class(args: Mapping[str, Any]) -> str | None:
    """Return the transformers class (without ForCausalLM) of a mixture of experts with these arguments, if any."""
    sigmoid, shared = args.get("scores") == "sigmoid", args.get("shared", 0)
    if sigmoid:
        return "Glm4Moe" if shared else None
    plain = args.get("normalize", True) and args.get("scale", 1.0) == 1.0
    return "Mixtral" if plain and not shared and not args.get("bias_rate") else None


def of_proofs(run: Run) -> str:
    """Return a digest of what proofs depend on besides strategies and code: it is that of all runs of a workload."""
    model = run.model.model_dump(mode="json")
    return run_identity.digest([model, run.task, run.data.options, run.recipe.sync_batch_norm])


def refusals(run: Run, workload: str) -> dict[str, str]:
    """Return {strategy: why it must not train a workload}, as far as proofs were made of such a ``run``; ``workload``:
    as in results/init.

    Raises:
        UserError: the file with the proofs is damaged.
    """
    path = Path("results/init") / workload / PROOFS
    if not path.exists():
        return {}
    again = "delete it and proofs.txt beside it: they are made again"
    found: dict[str, Any] = read_json(path, "proofs at tiny sizes", again)
    return dict(found[REFUSED]) if found.get(OF) == of_proofs(run) else {}

"""Data set and model of a run, from a workload at one size."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from shardlab.errors import Unsupported, UserError, choices, unknown
from shardlab.settings import code_fingerprint, load, pretrained, registry, run_identity, variants
from shardlab.settings.config import Config
from shardlab.settings.recipe import Recipe
from shardlab.settings.types import DataSet, DataSource, Model, Run, Size, Workload

T = TypeVar("T")


def data_set(config: Config, name: str) -> DataSet:
    """Return the settings of a data set that some workload uses under this configuration.

    Raises:
        UserError: no workload uses it.
    """

    def of(_: str, workload: Workload, size: Size, varied: str) -> DataSet:
        return data_of(workload, config, size, config.seed, varied=varied)

    # Of several with a name the first one counts.
    return _known("data set", name, {each.name: each for each in reversed([*_each(config, of)])})


def model(config: Config, folder: str) -> Model:
    """Return the settings of the transformers model that a workload downloads to ``folder`` under this configuration.

    Raises:
        UserError: no workload downloads it.
    """

    def of(name: str, workload: Workload, size: Size, _: str) -> Model | None:
        if not pretrained.is_pretrained(workload.model):
            return None
        return model_of(workload, name, model_args(workload, config, size), 0)

    return _known("model", folder, {str(each.folder): each for each in reversed([*_each(config, of)]) if each})


def _known(what: str, name: str, found: dict[str, T]) -> T:
    if name not in found:
        raise unknown(what, name, found, "config")
    return found[name]


def _each(config: Config, of: Callable[[str, Workload, Size, str], T]) -> Iterator[T]:
    """Yield what a function of (name, workload, size, size that a variant names) returns for every workload: at the
    configuration's size, the configured workloads first; then at all its named sizes, for variants.

    Files of other workloads may be incomplete, or not fit the configuration, and are left out then.
    """
    configured = dict.fromkeys(map(variants.base, config.workloads))
    others = [name for name in load.names("workloads") if name not in configured]
    for varied in (False, True):
        for name in (*configured, *others):
            try:
                workload = load.workload(name)
                sizes = workload.sizes if varied else {"": workload.sizes.get(config.size)}
                found = [of(name, workload, size, variant) for variant, size in sizes.items() if size is not None]
            except UserError:
                if name in configured:
                    raise
            else:
                yield from found


def model_args(workload: Workload, config: Config, size: Size) -> dict[str, Any]:
    source = _source(workload, config)
    own, both = size.model | source.model, size.shape | source.shape
    if wrong := [key for key in own if own[key] != both.get(key, own[key])]:
        raise UserError(
            f"a workload's file has {wrong[0]} {own[wrong[0]]} under `model:` and {both[wrong[0]]} under `shape:`, "
            "which both the model and the data get; write it there alone."
        )
    return own | both


def size_of(workload: Workload, config: Config, name: str) -> Size:
    """Return the workload at the configuration's size.

    Raises:
        UserError: no configured workload has a size of that name.
        Unsupported: others have.
    """
    if config.size not in workload.sizes:
        if any(config.size in load.workload(variants.base(other)).sizes for other in config.workloads):
            raise Unsupported(f"{name} has no size {config.size}; it has {choices(workload.sizes)}.")
        raise unknown("size", config.size, workload.sizes, f"config: size, for workload {name}")
    return workload.sizes[config.size]


def _source(workload: Workload, config: Config) -> DataSource:
    """Return the data source that the configuration selects; a workload without hub data uses the embedded data."""
    if source := workload.data.get(config.data) or workload.data.get("embedded"):
        return source
    raise UserError(
        f"config: data is {config.data}, but a workload's `data:` has only hub ({workload.data['hub'].name}); set "
        "data=hub, or add embedded to the workload's file."
    )


def data_of(workload: Workload, config: Config, size: Size, seed: int, varied: str) -> DataSet:
    """Return the workload's data set. ``varied``: the size that a variant names, which has a separate data set."""
    source = _source(workload, config)
    args = model_args(workload, config, size)
    tokenizer = pretrained.tokenizer_of(workload, args)
    return DataSet(
        name=f"{source.name}_{varied}" if varied else source.name,
        task=workload.task,
        seed=seed,
        options=size.data | size.shape | source.shape,
        reader=source.reader,
        tokenizer=tokenizer,
        model={key: args[key] for key in args if tokenizer and pretrained.OF_TOKENS.fullmatch(key)},
        hub=source.hub,
        sources=code_fingerprint.data_sources(source.reader),
    )


def model_of(workload: Workload, name: str, args: dict[str, Any], segments: int, recipe: Recipe | None = None) -> Model:
    """Return the workload's model with these arguments and number of segments; ``recipe``: that of its training."""
    is_pretrained = pretrained.is_pretrained(workload.model)
    model = Model(
        name=workload.model,
        args=args,
        blocks=workload.blocks,
        tensor=dict(workload.tensor),
        experts=[*workload.experts],
        segments=segments,
        freeze=recipe.freeze if recipe else [],
        adapter=recipe.adapter if recipe else None,
        sources=code_fingerprint.model_sources(workload.model, transformers=is_pretrained),
    )
    if not is_pretrained:
        return model
    return pretrained.settings(model, f"config/workloads/{name}.yaml")


def check_files(workload: Workload, config: Config, name: str) -> None:
    """Check that the model, task and reader that a workload names exist."""
    requested = {"reader": _source(workload, config).reader, "task": workload.task}
    if not pretrained.is_pretrained(workload.model):
        requested["model"] = workload.model
    for kind, file in requested.items():
        registry.require(kind, file, f"config/workloads/{name}.yaml: {kind}")


def check_args(workload: Workload, name: str, args: dict[str, Any], options: dict[str, Any]) -> None:
    """Check that the model has the classes and tokens of the data.

    Raises:
        UserError: it has not.
    """
    for key, other in (("vocab_size", "vocab_size"), ("classes", "num_labels")):
        given, in_model = options.get(key), args.get(key, args.get(other))
        if isinstance(given, int) and isinstance(in_model, int) and given > in_model:
            raise UserError(
                f"config/workloads/{name}.yaml: the data has {key} {given}, but the model {in_model}; write it "
                "once, under `shape:`, which both get."
            )
    if pretrained.is_pretrained(workload.model) and "classes" in options and not {"classes", "num_labels"} & {*args}:
        raise UserError(
            f"config/workloads/{name}.yaml: the data has classes {options['classes']}, of which the model does not "
            "know; write classes under `shape:`, which both get."
        )


def check_shared(config: Config, run: Run) -> None:
    """Check that two workloads share a prepared data set or a downloaded model only if its settings are the same.

    Raises:
        UserError: another workload has the same name for another data set, or another revision of the model.
    """
    if (other := data_set(config, run.data.name)) != run.data:
        theirs, own = (dict(run_identity.flat(each.model_dump(mode="json"))) for each in (other, run.data))
        key = next(key for key in (*theirs, *own) if theirs.get(key) != own.get(key))
        one, here = ("nothing" if each.get(key) is None else each[key] for each in (theirs, own))
        raise UserError(
            f"config/workloads/{run.workload}.yaml: another workload also prepares a data set {run.data.name}, with "
            f"{one} as {key}, and this one with {here}; give one of them another name under `data:`."
        )
    if run.model.repo and (revision := model(config, str(run.model.folder)).revision) != run.model.revision:
        raise UserError(
            f"config/workloads/{run.workload}.yaml: another workload, or another size, has {run.model.repo} at "
            f"revision {revision}, and this one at {run.model.revision}; a folder has one of them: use the same, or a "
            "copy as a local folder."
        )

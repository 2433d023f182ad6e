"""Run a script for its first steps, and say which rules of docs/your-own.md
it keeps.

It is started as a strategy's script is, on two ranks of this machine, with the
settings, data and initial weights of `single`; `single` takes the same steps,
and losses, gradient norms and what became of the weights are compared. Prints
a line per rule; status 1 if one is not kept.
"""

import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from shardlab.cli import at_least, program
from shardlab.data import store
from shardlab.data.order import BatchOrder
from shardlab.errors import UserError
from shardlab.files import COMMAND, read_json, write_json
from shardlab.records import metrics
from shardlab.records.script_lines import DUMPS, Line, Lines, has_dumps
from shardlab.runs import script_place
from shardlab.settings import resolve
from shardlab.settings.config import Config
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run, sealed

NEAR = 0.1
"""Of a gradient norm, and of the update: Adam moves weights whose gradient is only rounding at random."""
Weights = dict[str, Any]
SECONDS = 600
"""After which ranks are taken to wait for one another for ever."""


@program
def main(
    script: Annotated[Path, "the program that trains"],
    /,
    workload: str,
    config: Config,
    ranks: Annotated[int, at_least(1), "ranks of this machine (default: 2)"] = 2,
    steps: Annotated[int, at_least(1), "steps (default: 3)"] = 3,
) -> int:
    """Run the script and `single`, print what is kept; return the exit status."""
    run = resolve.run(config, "single", workload)
    data = Path("data/prepared") / run.data.name
    weights = Path("results/init") / f"{resolve.weights_of(workload)}.safetensors"
    if not script.is_file():
        raise UserError(f"{script} does not exist; name the script from the project's root.")
    for path in (data / "train.safetensors", weights):
        if not path.exists():
            raise UserError(
                f"{path} does not exist; make it with: snakemake --profile workflow/profiles/local -- "
                f"results/single/{workload}.done"
            )
    drawn = read_json(weights.with_suffix("") / "run.json", "settings", "draw them again")["recipe"]["dtype"]
    if drawn != run.recipe.dtype:
        raise UserError(f"{weights} is in {drawn}, and this call in {run.recipe.dtype}; add --config dtype={drawn}.")
    short = run.model_copy(update={"recipe": run.recipe.model_copy(update={"max_steps": steps})})
    with tempfile.TemporaryDirectory() as place:
        kept = True
        for rule, broken in check(short, script, data, weights, Path(place), ranks):
            print(f"{'kept' if broken is None else 'BROKEN'}: {rule}" + (f": {broken}" if broken else ""), flush=True)
            kept &= broken is None
    order = BatchOrder(store.samples_in(data, "train"), run.recipe.global_batch_size, run.seed)
    if steps <= order.steps_per_epoch < run.recipe.steps(order.steps_per_epoch):
        print(f"note: these steps are all of epoch 0; --steps {order.steps_per_epoch + 1} reaches the next")
    return int(not kept)


def check(
    run: Run, script: Path, data: Path, weights: Path, place: Path, ranks: int
) -> Iterator[tuple[str, str | None]]:
    """Yield each rule of the contract that can be checked, and what is wrong with it; None: it is kept."""
    from safetensors.torch import load_file

    from shardlab.train import loop, script_report  # imports take seconds

    output, single = place / script_place.OUTPUT, place / "single"
    output.mkdir()
    single.mkdir()
    write_json(place / "run.json", sealed(run))
    options = {"run": place / "run.json", "data": data, "weights": weights, "output": output}
    failed = _started(
        script, [word for key, path in options.items() for word in (f"--{key}", str(path.absolute()))], ranks
    )
    yield f"it ends with status 0 on {ranks} ranks", failed
    if failed:
        return
    loop.train(run, data, weights, single, {})
    usual = [record for record in metrics.read(single / metrics.NAME) if record["kind"] == "train"]
    lines = Lines(output / metrics.NAME, 0, len(usual))
    found: list[Line] = []
    wrong = _sentence(lambda: found.extend(lines.new(ended=True))) or _sentence(lines.finish)
    yield f"{metrics.NAME} has a line for each of {len(usual)} steps", wrong
    tolerance = PRECISIONS[run.recipe.dtype].tolerance or 0.0
    yield (
        f"its losses are single's to {tolerance:.0e}, its gradient norms to {NEAR:.0%}",
        _differs(found, usual, tolerance),
    )
    path = output / script_place.WEIGHTS
    yield (
        f"{script_place.WEIGHTS} has the weights of --weights, changed as single's to {NEAR:.0%}",
        _sentence(lambda: script_report.check_weights(path, weights, str(script)))
        or _updated(*(load_file(each) for each in (weights, single / script_place.WEIGHTS, path))),
    )
    if has_dumps(output / DUMPS):
        yield f"its first steps are dumped into OUTPUT/{DUMPS} (a diagnosis may follow)", None
    else:
        print(f"note: no dumps in OUTPUT/{DUMPS}: a run that is not equal then has no diagnosis (docs/diagnose.md)")


def _updated(initial: Weights, single: Weights, own: Weights) -> str | None:
    """Return how the update of all weights together differs from that of `single`; None if hardly."""

    def norm(one: Weights, other: Weights) -> float:
        return math.sqrt(sum(float((one[name].double() - other[name].double()).square().sum()) for name in one))

    off, whole = norm(single, own), norm(single, initial)
    if off <= NEAR * whole:
        return None
    return f"they are off by {off / whole:.2g} of what single changed; are the optimizer's settings the recipe's?"


def _started(script: Path, options: list[str], ranks: int) -> str | None:
    """Run a script on ranks of this machine as `shardlab launch` does, with their output here; return what failed."""
    torchrun = [sys.executable, str(COMMAND), "fork_torchrun", "--standalone", "--listen", f"--nproc-per-node={ranks}"]
    torchrun += ["--no-python"] * (script.suffix != ".py")
    with subprocess.Popen([*torchrun, "--", str(script.absolute()), *options]) as process:
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            return f"it did not end within {SECONDS} seconds"
    return f"torchrun ended with status {status}; see the output of the ranks above" if status else None


def _sentence(look: Callable[[], object]) -> str | None:
    """Return the sentence of a check that fails."""
    try:
        look()
    except UserError as error:
        return str(error)
    return None


def _differs(found: list[Line], usual: list[dict[str, float]], tolerance: float) -> str | None:
    """Return the first step whose loss is not that of `single`."""
    if not found:
        return "there are no losses to compare"
    for line, record in zip(found, usual, strict=False):
        off = abs(line.loss - record["loss"]) / abs(record["loss"])
        if not off <= tolerance:
            said = f"the loss of step {line.step} is {line.loss:.8g}, and single's {record['loss']:.8g}"
            if line.step:
                return f"{said}; that of step 0 is equal: look at the gradients, the update and the order of samples"
            return (
                f"{said}. `loss` is the mean over all targets of the step: on several ranks the sum of theirs, "
                "all-reduced, by that of their targets; the order is that of docs/your-own.md"
            )
        if line.grad_norm is not None and not math.isclose(line.grad_norm, record["grad_norm"], rel_tol=NEAR):
            ratio = line.grad_norm / record["grad_norm"]
            return (
                f"the gradient norm of step {line.step}, before clipping, is {line.grad_norm:.6g}, {ratio:.3g} times "
                "single's; is the loss divided, and are the gradients reduced, as over all ranks?"
            )
    return None

"""What spmd_types, TrainCheck and a comparison with one device say of the faults of spmd_programs.py."""

import json
import multiprocessing
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import spmd_types as spmd
import spmd_types.checker
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import start_processes

from shardlab.errors import UserError
from tools import spmd_programs  # type: ignore[import-not-found]
from tools.spmd_programs import FAULTS, PROGRAMS, Ranks  # type: ignore[import-not-found]

TOLERANCE = 1e-9
"""Of the largest value of a parameter after training in float64."""
REFERENCES, CONTROL = (1, 2), 3
"""Seeds: TrainCheck learns from runs with other weights and data than those that it checks."""
PROGRAM = Path(spmd_programs.__file__)
ORDER = ("FunctionCoverRelation", "FunctionLeadRelation")
"""Relations of the order of calls, which TrainCheck's tutorial calls noise."""


def in_fork(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function gives in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, args)


# One device


def compare(names: list[str], folder: Path) -> dict[str, str]:
    """Return how far each fault's parameters are from those of one rank."""
    for size in (1, 2):
        start_processes(train_all, (size, names, folder), nprocs=size, start_method="fork")
    parameters = {size: torch.load(folder / f"parameters-{size}.pt") for size in (1, 2)}
    for program in PROGRAMS:
        if (apart := distance(parameters[2][program], parameters[1][program])) > TOLERANCE:
            raise UserError(f"the program {program} without a fault is {apart:.0e} from one rank; it should be equal.")
    found = {}
    for name in names:
        correct, faulty = parameters[1][FAULTS[name].program], parameters[2][name]
        same = distance(faulty, parameters[1][name]) <= TOLERANCE
        found[name] = f"{distance(faulty, correct):.0e}" + (", one device has it too" if same else "")
        print(f"{name}: {found[name]}", flush=True)
    return found


def train_all(rank: int, size: int, names: list[str], folder: Path) -> None:
    """Train the programs without and with each fault; rank 0 writes the parameters of all ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{size}", rank=rank, world_size=size)
    ranks = Ranks(dist.group.WORLD, rank, size)
    found: dict[str, dict[str, Tensor]] = {}
    for name in [*PROGRAMS, *names]:
        program, fault = (name, "") if name in PROGRAMS else (FAULTS[name].program, name)
        model = spmd_programs.train(program, ranks, fault)
        found[name] = {}
        for parameter, value in model.named_parameters():
            parts = [torch.empty_like(value) for _ in range(size)]
            dist.all_gather(parts, value.detach())
            if parameter in model.shards:
                parts = [torch.cat(parts, model.shards[parameter])]
            found[name] |= {f"{parameter} {number}": part for number, part in enumerate(parts)}
    if rank == 0:
        torch.save(found, folder / f"parameters-{size}.pt")
    dist.destroy_process_group()


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest difference of a parameter on any rank, of its largest value."""
    return max(
        float((value - whole).abs().max() / whole.abs().max())
        for name, value in found.items()
        for whole in [expected[f"{name.split()[0]} 0"]]
    )


# spmd_types


def check_types(names: list[str], local: bool) -> dict[str, str]:
    """Return what spmd_types says of each fault, with local or global types, on two ranks that are not there."""
    import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("ranks",))
    ranks = Ranks(mesh.get_group("ranks"), 0, 2)

    def check(program: str, fault: str = "") -> str:
        try:
            with spmd.set_current_mesh(mesh), spmd_types.checker.typecheck(local=local):
                spmd_programs.train(program, ranks, fault, typed=True)
        except (spmd.SpmdTypeError, ValueError) as error:
            return first_sentence(str(error))
        return ""

    for program in PROGRAMS:
        if said := check(program):
            raise UserError(f"spmd_types refuses the program {program} without a fault: {said}")
    found = {}
    for name in names:
        found[name] = check(FAULTS[name].program, name)
        print(f"{name}: spmd_types, {'local' if local else 'global'}: {found[name] or 'nothing'}", flush=True)
    return found


def first_sentence(message: str) -> str:
    """Return the first sentence of a message of the checker, without the name of the only axis."""
    line = re.sub(r" on axis \w+|PerMeshAxisLocalSpmdType\.", "", message.strip().splitlines()[0])
    return re.split(r" \(|\. ", line.removesuffix("."))[0]


# TrainCheck


def trace(names: list[str], folder: Path) -> tuple[dict[str, str], str]:
    """Return which invariants of correct runs each fault breaks that another correct run does not, and how many that
    run breaks.
    """
    shutil.copy(PROGRAM, folder)
    controls, alarms = {}, []
    for program in {FAULTS[name].program: None for name in names}:
        references = [collect(folder, program, "", seed) for seed in REFERENCES]
        traincheck("infer_engine", folder, "-f", *references, "-o", f"{program}.json")
        controls[program] = broken(folder, program)
        count = len((folder / f"{program}.json").read_text(encoding="utf-8").splitlines())
        alarms.append(f"{len(controls[program])} of {count} ({program})")
        print(f"TrainCheck: invariants broken without a fault: {alarms[-1]}", flush=True)
    found = {}
    for name in names:
        program = FAULTS[name].program
        found[name] = in_words(broken(folder, program, name) - controls[program])
        print(f"{name}: TrainCheck: {found[name] or 'nothing'}", flush=True)
    return found, ", ".join(alarms)


def in_words(invariants: set[tuple[str, str]]) -> str:
    """Return how many there are, and one of them: of parameters, if there is one."""
    telling = [label for relation, label in invariants if relation not in ORDER]
    telling.sort(key=lambda label: ("Parameter" not in label or "data_ID" in label, label))
    ordering = len(invariants) - len(telling)
    parts = [f"{len(telling)}: {telling[0]}"] if telling else []
    return "; ".join(parts + ([f"{ordering} of order"] if ordering else []))


def broken(folder: Path, program: str, fault: str = "") -> set[tuple[str, str]]:
    """Return relation and text of each invariant that a run breaks.

    Everything is traced, as in TrainCheck's tutorial. The last step does not count: the trace ends within it, and
    correct runs break invariants there, too, now and then.
    """
    run = collect(folder, program, fault, CONTROL)
    traincheck("checker", folder, "-f", run, "-i", f"{program}.json", "-o", f"{run}-checked", "--no-html-report")
    (summary,) = (folder / f"{run}-checked").glob("*/violations_summary.json")
    return counted(summary, program)


def counted(summary: Path, program: str) -> set[tuple[str, str]]:
    """Return relation and text of each invariant of a summary that breaks before the last step."""
    last = spmd_programs.STEPS * (1 + PROGRAMS[program].micro_batches)  # TrainCheck counts the rounds of both loops
    violations = json.loads(summary.read_text(encoding="utf-8"))["violations"]
    early = [each for each in violations if each["first_step"] is None or each["first_step"] < last]
    return {(each["relation_type"], each["display_name"]) for each in early}


def collect(folder: Path, program: str, fault: str, seed: int) -> str:
    """Trace two ranks; return the name of the folder with their traces."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = shlex.join([sys.executable, PROGRAM.name, program, "--fault", fault, "--seed", str(seed)])
    start = f"MASTER_ADDR=localhost MASTER_PORT={port} WORLD_SIZE=2 RANK"
    (folder / "run.sh").write_text(f"{start}=0 {words} &\n{start}=1 {words} && wait $!\n", encoding="utf-8")
    run = re.sub(r"\W+", "-", f"{program}-{fault}-{seed}")
    where = ("--pyscript", PROGRAM.name, "--shscript", "run.sh", "--models-to-track", "model", "--output-dir", run)
    traincheck("collect_trace", folder, *where)
    return run


def traincheck(name: str, folder: Path, *words: str) -> None:
    """Run one of its commands."""
    with (folder / "traincheck.txt").open("a+", encoding="utf-8") as log:
        start = log.tell()
        process = multiprocessing.get_context("fork").Process(
            target=run_command, args=(name, folder, words, log.fileno())
        )
        process.start()
        process.join()
        if process.exitcode:
            log.seek(start)
            lines = log.read().strip().splitlines()[-20:]
            raise UserError("\n".join([f"traincheck's {name} failed:", *lines]))


def run_command(name: str, folder: Path, words: tuple[str, ...], log: int) -> None:
    """Call the function of a console script of TrainCheck, whose imports take longer than the rest."""
    os.chdir(folder)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = [name, *words]
    import_module(f"traincheck.{name}").main()

"""Launchers: what starts a program at a site, once per node: srun, inside a Slurm job, or this machine's shell.

torchrun starts the ranks of a node from there (`shardlab fork_torchrun`).
"""

import shlex
import signal

from shardlab.errors import UserError
from shardlab.runs import slurm
from shardlab.settings.sites import SiteRuntime, Srun

RENDEZVOUS = "RENDEZVOUS"
"""Environment variable with the address and port where the nodes of a job meet."""


def signals(site: SiteRuntime) -> tuple[signal.Signals, signal.Signals]:
    """Return the signal that makes the started command stop its program, and the one that ends both at once."""
    # srun kills its tasks on SIGTERM, and forwards SIGUSR1 to them.
    return (signal.SIGUSR1, signal.SIGTERM) if site.srun else (signal.SIGTERM, signal.SIGKILL)


def require(site: SiteRuntime, site_name: str) -> None:
    """Raise a UserError unless programs can be started from this process."""
    if site.srun and slurm.job_id() is None:
        raise UserError(
            f"site {site_name} starts ranks with srun, inside a Slurm job, and this is not one; "
            "run snakemake with --profile slurm, or choose site local."
        )


def lines(site: SiteRuntime, on_node: list[str], nodes: int, per_node: int, options: list[str]) -> list[str]:
    """Return Bash lines that run the lines ``on_node`` once per node, with ``per_node`` devices and their CPU cores.

    ``options``: srun's, which start them inside the image.
    """
    if site.srun is None:
        return on_node
    address, port = _address(site.srun), f"$(({site.srun.port_first} + SLURM_JOB_ID % {site.srun.ports}))"
    found = [f'export {RENDEZVOUS}="{address}:{port}"'] if nodes > 1 else []
    # Nothing is inherited from the job: each number is given explicitly.
    step = ["srun", *slurm.packed_step(per_node)]
    step += [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    step += [f"--cpus-per-task={per_node * site.cpus_per_rank}", "--kill-on-bad-exit=1", "--export=ALL"]
    return [*found, f"exec {shlex.join([*step, *site.srun.flags, *options, 'bash', '-c', chr(10).join(on_node)])}"]


def rendezvous(srun: Srun) -> list[str]:
    """Return torchrun's quoted arguments that connect several nodes; each node's shell expands them."""
    return [
        "--rdzv-backend=c10d",
        '--rdzv-id="$SLURM_JOB_ID"',
        f'--rdzv-endpoint="${RENDEZVOUS}"',
        # torchrun's detection of the first node does not work with every host name (pytorch issue 73656).
        '--rdzv-conf="is_host=$((SLURM_NODEID == 0))"',
        f'--local-addr="{_address(srun)}"',
    ]


def _address(srun: Srun) -> str:
    """Return a shell expression for the address of the node that evaluates it, by the site's rule."""
    if srun.interface:
        return f'$(ip -4 -br address show dev {srun.interface} | grep -m 1 -oE "[0-9.]+/" | tr -d /)'
    return f"$(hostname -s){srun.suffix}" if srun.suffix else "$(hostname)"

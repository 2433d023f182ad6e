"""Launchers: what starts a program at a site. One file per launcher, named after its key in a site's file.

A launcher starts one process per node; torchrun starts the ranks of a node from there (`shardlab fork_torchrun`).
"""

import shlex
import signal
from abc import ABC, abstractmethod
from importlib import import_module
from typing import ClassVar

from shardlab.settings.sites import LauncherSettings, SiteRuntime

RENDEZVOUS = "RENDEZVOUS"
"""Environment variable with the address and port where the nodes of a job meet."""


class Launcher(ABC):
    """Start of a program on the nodes of a run, and the signal that stops it."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """Signal that makes the started command end its program, or forward the request to it."""
    kill_signal: ClassVar[signal.Signals] = signal.SIGKILL
    """Signal that ends the started command and its program at once."""
    programs: ClassVar[tuple[str, ...]] = ()
    """Programs that this launcher needs on the machine that Snakemake runs on."""

    def __init__(self, site: SiteRuntime) -> None:
        """Start programs as this site's settings say."""
        self.site = site

    def require(self, site_name: str) -> None:  # noqa: B027
        """Raise a UserError unless programs can be started from this process."""

    @abstractmethod
    def lines(self, on_node: list[str], nodes: int, cpus: int, options: list[str]) -> list[str]:
        """Return Bash lines that run the lines ``on_node`` once per node, with this number of CPU cores each.

        ``options``: those of the command itself that start the lines inside the image.
        """

    @abstractmethod
    def rendezvous(self) -> list[str]:
        """Return torchrun's quoted arguments that connect several nodes; each node's shell expands them."""


class JobLauncher(Launcher):
    """A command that starts one process on each node of a batch system's job."""

    job_id: ClassVar[str]
    """Environment variable with the id of the job."""
    node_rank: ClassVar[str]
    """Environment variable with the number of a node within the job, from 0."""

    @property
    @abstractmethod
    def job_number(self) -> str:
        """Shell arithmetic that gives a number that differs between concurrent jobs; for their ports."""

    @property
    def settings(self) -> LauncherSettings:
        """The site's settings of this launcher."""
        found = getattr(self.site, self.site.launcher)
        assert isinstance(found, LauncherSettings)
        return found

    @property
    def port(self) -> str:
        """Shell arithmetic that gives a port of the first node, another one in each concurrent job."""
        return f"$(({self.settings.port_first} + {self.job_number} % {self.settings.ports}))"

    @abstractmethod
    def command(self, nodes: int, cpus: int) -> list[str]:
        """Return the words that start a command once per node, without the site's flags."""

    def lines(self, on_node: list[str], nodes: int, cpus: int, options: list[str]) -> list[str]:
        lines = []
        if nodes > 1:
            lines.append(f'export {RENDEZVOUS}="{address(self.settings)}:{self.port}"')
        return [*lines, self.executed(self.command(nodes, cpus), options, on_node)]

    def executed(self, words: list[str], options: list[str], lines: list[str]) -> str:
        """Return the Bash line that starts the lines with these words, the site's flags and options for the image."""
        return f"exec {shlex.join([*words, *self.settings.flags, *options, 'bash', '-c', chr(10).join(lines)])}"

    def rendezvous(self) -> list[str]:
        return [
            "--rdzv-backend=c10d",
            f'--rdzv-id="${self.job_id}"',
            f'--rdzv-endpoint="${RENDEZVOUS}"',
            # torchrun's detection of the first node does not work with every host name (pytorch issue 73656).
            f'--rdzv-conf="is_host=$(({self.node_rank} == 0))"',
            f'--local-addr="{address(self.settings)}"',
        ]


def for_site(site: SiteRuntime) -> Launcher:
    launcher: Launcher = import_module(f"shardlab.runs.launchers.{site.launcher}").Launcher(site)
    return launcher


def address(settings: LauncherSettings) -> str:
    """Return a shell expression for the address of the node that evaluates it, by the site's rule."""
    if settings.interface:
        return f'$(ip -4 -br address show dev {settings.interface} | grep -m 1 -oE "[0-9.]+/" | tr -d /)'
    return f"$(hostname -s){settings.suffix}" if settings.suffix else "$(hostname)"

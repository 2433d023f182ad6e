"""Programs on this machine, as children of this process."""

from shardlab.runs import launchers


class Launcher(launchers.Launcher):
    """See the base class."""

    def lines(self, on_node: list[str], nodes: int, cpus: int, options: list[str]) -> list[str]:
        return on_node

    def rendezvous(self) -> list[str]:
        raise ValueError("resolve refuses several nodes at a site without a launcher")

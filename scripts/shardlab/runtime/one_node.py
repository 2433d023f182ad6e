"""How the ranks of one node meet: other machines reach nothing of it, and other users what listens on loopback."""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import FileStore, HashStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

STORE = "SHARDLAB_STORE"
"""Environment variable with the file over which the ranks find each other, in a folder that only its owner can open."""
LOOPBACK = "127.0.0.1"
LISTENING = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that name the network interface on which ranks listen for each other."""


class OneNode(StaticTCPRendezvous):
    """Torchrun's rendezvous of one node: its process meets nobody, so its store is its own memory.

    PyTorch's own ones open a port on all addresses of the machine, and read pickles from there.
    """

    def __init__(self, name: str, *, listens: bool) -> None:
        """``listens``: for programs that meet at MASTER_ADDR and MASTER_PORT; PyTorch's store there has no password."""
        self.server = loopback_store() if listens else None
        super().__init__(LOOPBACK, self.server.port if self.server else 0, rank=0, world_size=1, run_id=name, timeout=0)

    @property
    def use_agent_store(self) -> bool:
        """Ranks connect to the store at MASTER_PORT; without it, rank 0 would open one on all addresses."""
        return self.server is not None

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo(self.master_addr, self.master_port))


BACKEND = "one_node"


@contextmanager
def rendezvous(*, listens: bool) -> Iterator[list[str]]:
    """Yield torchrun's arguments for the ranks of one node, which then meet as ``store`` says."""

    def make(parameters: RendezvousParameters) -> RendezvousHandler:
        return OneNode(parameters.run_id, listens=listens)

    rendezvous_handler_registry.register(BACKEND, make)
    stay_inside()
    with tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
        os.environ[STORE] = str(Path(folder) / "store")
        yield [f"--rdzv-backend={BACKEND}"]


def stay_inside() -> None:
    """Make ranks that start from now on listen on the loopback interface alone."""
    os.environ.update(dict.fromkeys(LISTENING, "lo" if sys.platform.startswith("linux") else "lo0"))


def store(timeout: timedelta) -> Store | None:
    """Return the store of the ranks of one node; None for those of several, which meet at MASTER_ADDR."""
    if STORE not in os.environ:
        return None
    found = FileStore(os.environ[STORE], int(os.environ["WORLD_SIZE"]))
    found.set_timeout(timeout)
    return found


def loopback_store() -> TCPStore:
    """Return a store of PyTorch that listens on the loopback address, at a free port."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        return TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())

#!/usr/bin/env python3
"""A Slurm cluster on one Debian machine, as root: real daemons, nodes without external network.

Each node is a slurmd in its own network and host-name namespace, on a bridge that connects only
the login node (this machine) and the other nodes. Its GPUs are fake: Slurm schedules them.
"""

import argparse
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import apptainer
from processes import HOME, birth, daemon, output, quiet, run, stop, stop_daemon, wait

SLURM = Path("/etc/slurm")
TEMPLATES = Path(__file__).with_name("etc")
BRIDGE = "shardlab0"
NETWORK = "10.77.0"
LOGIN = f"{NETWORK}.1"
USER = "learner"
ACCOUNT = "teaching"
PACKAGES = [
    *("slurm-wlm", "slurmdbd", "mariadb-server", "munge", "iproute2"),
    *("squashfs-tools", "squashfuse", "fuse-overlayfs", "fuse3", "uidmap", "debootstrap"),
    *("patchelf", "libseccomp2", "libsqlite3-0", "python3-venv", "make"),
]
BROWSER = ["chromium", "chromium-driver"]
"""For the tests that look at the report; the cluster itself does without."""


def main() -> None:
    """Run the action of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["prepare", "up", "down", "shell"], help="prepare: for tests")
    parser.add_argument("--nodes", type=int, default=2, help="nodes (2)")
    parser.add_argument("--gpus", type=int, default=4, help="fake GPUs of a node (4)")
    parser.add_argument("--cpus", type=int, default=8, help="CPU cores that a node claims to have (8)")
    args = parser.parse_args()
    if args.action == "prepare":
        prepare()
        return
    if reason := incompatibility():
        sys.exit(f"error: no cluster here: {reason}.")
    if args.action == "up":
        up(args.nodes, args.gpus, args.cpus)
    elif args.action == "down":
        down()
    elif args.action == "shell":
        if not (HOME / "run").exists():
            sys.exit("error: the cluster is down; start it with: make cluster-up.")
        os.execvp("su", ["su", "-", USER])


def incompatibility() -> str | None:
    """Return why this machine cannot run the cluster, or None."""
    if not Path("/etc/debian_version").exists():
        return "its packages are Debian's, and this is another system"
    if os.geteuid() != 0:
        return "network namespaces and Slurm's daemons need root"
    if subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True).returncode:
        return "this root may not make network namespaces"
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse, which Apptainer mounts images with"
    return None


def up(nodes: int, gpus: int, cpus: int) -> None:
    """Start everything; a failure takes down what was started."""
    conf = SLURM / "slurm.conf"
    if conf.is_file() and "cluster in a box" not in conf.read_text():
        sys.exit(f"error: {conf} belongs to another Slurm; the cluster in a box would replace it.")
    if (HOME / "run").exists():
        down()
    begin = time.monotonic()
    install(PACKAGES)
    apptainer.install()
    try:
        start(nodes, gpus, cpus)
    except BaseException:
        down()
        raise
    print(f"up in {time.monotonic() - begin:.0f} s: {nodes} nodes x {gpus} fake GPUs. Log in with: make cluster-shell")


def prepare() -> None:
    """Print what the tests change on this machine, and install their packages."""
    if reason := incompatibility():
        print(f"No cluster here, so its tests will be skipped: {reason}.")
        return
    wanted = [*PACKAGES, *BROWSER]
    packages = ", ".join(missing(wanted)) or "none, all are there"
    print(f"The cluster tests will install these Debian packages: {packages};")
    there = "which is there" if shutil.which("apptainer") else f"to {apptainer.HOME}, with a link in {apptainer.LINK}"
    print(f"Apptainer, {there};")
    print(f"and use the user {USER}, {HOME}, {SLURM}/*.conf and /dev/fuse while they run.", flush=True)
    install(wanted)


def missing(wanted: list[str]) -> list[str]:
    """Debian packages that are not installed."""
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *wanted]
    listed = subprocess.run(query, text=True, capture_output=True).stdout.splitlines()
    return [name for name in wanted if f"{name} installed" not in listed]


def install(wanted: list[str]) -> None:
    """Install the Debian packages that are missing; their services are not started."""
    new = missing(wanted)
    if not new:
        return
    print("installing", *new, flush=True)
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "-qq", "update")
        run("apt-get", "-qq", "install", "--no-install-recommends", *new, env=environment)
    finally:
        if ours:
            policy.unlink()


def start(nodes: int, gpus: int, cpus: int) -> None:
    """Bring up network, daemons and accounts, in the order in which they need each other."""
    folders(nodes, gpus)
    configure(nodes, gpus, cpus)
    network(nodes)
    daemon("munged", "munged", "--foreground", f"--key-file={HOME}/munge.key", *munge_files(), user="munge")
    wait("munge", lambda: (HOME / "run/munge.socket").exists())
    database()
    start_slurmdbd()
    accounts()
    daemon("slurmctld", "slurmctld", "-D")
    for name in names(nodes):
        node(name)
    Path("/dev/fuse").chmod(0o666)
    wait("the nodes", lambda: output("sinfo", "-h", "-N", "-p", "batch", "-o", "%t").split() == ["idle"] * nodes)


def down() -> None:
    """End every process that `up` started, the latest first, and remove what it made."""
    pids = sorted((HOME / "run").glob("*.ours"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in pids:
        stop_daemon(path.stem)
    for namespace in output("ip", "netns", "list").split("\n"):
        name = namespace.split(" ")[0]
        if (HOME / "spool" / name).is_dir() and name:
            for pid in map(int, output("ip", "netns", "pids", name).split()):
                stop(pid, birth(pid))
            run("ip", "netns", "delete", name)
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)
    for path in (SLURM / template.name for template in TEMPLATES.iterdir()):
        if path.is_file() and "cluster in a box" in path.read_text():
            path.unlink()
    if (HOME / "fuse.mode").exists():
        Path("/dev/fuse").chmod(int((HOME / "fuse.mode").read_text()))
    shutil.rmtree(HOME, ignore_errors=True)


def folders(nodes: int, gpus: int) -> None:
    """The state of the cluster, the ordinary user, and the key of munge."""
    for name in ("run", "log", "state", "spool", "gpu", "mysql"):
        (HOME / name).mkdir(parents=True)
    (HOME / "fuse.mode").write_text(str(Path("/dev/fuse").stat().st_mode & 0o777))
    for name, owner in (("run", "slurm"), ("log", "slurm"), ("state", "slurm"), ("mysql", "mysql")):
        shutil.chown(HOME / name, owner, owner)
    (HOME / "run").chmod(0o1777)
    (HOME / "log").chmod(0o1777)
    for name in names(nodes):
        (HOME / "spool" / name).mkdir()
    for number in range(gpus):
        (HOME / "gpu" / str(number)).touch()
    key = HOME / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    shutil.chown(key, "munge", "munge")
    try:
        pwd.getpwnam(USER)
    except KeyError:
        run("useradd", "--create-home", "--shell", "/bin/bash", USER)


def configure(nodes: int, gpus: int, cpus: int) -> None:
    """Slurm's files, in the place where every client looks for them, and the hosts file of the nodes."""
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 1024 * 9 // 10 // nodes
    lines = [f"NodeName={name} NodeAddr={address(name)}" for name in names(nodes)]
    values = {"home": HOME, "host": socket.gethostname(), "address": LOGIN, "cpus": cpus, "gpus": gpus}
    values |= {"last_gpu": gpus - 1, "memory": memory, "nodes": "\n".join(lines)}
    for template in TEMPLATES.iterdir():
        path = SLURM / template.name
        path.write_text(template.read_text().format_map(values))
        path.chmod(0o600 if path.name == "slurmdbd.conf" else 0o644)
        shutil.chown(path, "slurm", "slurm")
    hosts = ["127.0.0.1 localhost", f"{LOGIN} {socket.gethostname()}"]
    hosts += [f"{address(name)} {name}" for name in names(nodes)]
    (HOME / "hosts").write_text("\n".join(hosts) + "\n")
    (HOME / "resolv.conf").touch()


def network(nodes: int) -> None:
    """A bridge with this machine on it, and a namespace for each node; no route leads further."""
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{LOGIN}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for name in names(nodes):
        run("ip", "netns", "add", name)
        pair = ["veth", "peer", "name", "eth0", "netns", name]
        run("ip", "link", "add", f"shardlab-{name}", "type", *pair)
        run("ip", "link", "set", f"shardlab-{name}", "master", BRIDGE, "up")
        run("ip", "-n", name, "address", "add", f"{address(name)}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")


def munge_files() -> list[str]:
    """Options for munged's files, which are separate from those of a system's munged."""
    files = {"socket": "run/munge.socket", "pid-file": "run/munged.pid", "seed-file": "run/munge.seed"}
    return [f"--{option}={HOME}/{path}" for option, path in (files | {"log-file": "log/munged.log"}).items()] + [
        "--force"
    ]


def database() -> None:
    """A separate MariaDB without a network, for slurmdbd."""
    data, sock = f"--datadir={HOME}/mysql", f"--socket={HOME}/run/mysql.sock"
    run("mariadb-install-db", "--no-defaults", data, "--user=mysql", "--skip-test-db", stdout=subprocess.DEVNULL)
    options = ["--no-defaults", data, sock, "--skip-networking", f"--pid-file={HOME}/run/mariadbd.pid"]
    daemon("mariadbd", "mariadbd", *options, "--innodb-buffer-pool-size=128M", user="mysql")
    client = ["mariadb", "--no-defaults", sock, "--user=root"]
    wait("MariaDB", lambda: quiet(*client, "-e", "select 1"))
    run(
        *client,
        "-e",
        "create database slurm; create user slurm@localhost identified via unix_socket; "
        "grant all on slurm.* to slurm@localhost",
    )


def start_slurmdbd() -> None:
    """Accounting; needs the database."""
    daemon("slurmdbd", "slurmdbd", "-D", MYSQL_UNIX_PORT=f"{HOME}/run/mysql.sock")
    wait("slurmdbd", lambda: quiet("sacctmgr", "-i", "show", "cluster"))


def accounts() -> None:
    """One account with the ordinary user in it (root belongs to every Slurm)."""
    for words in (
        ["cluster", "box"],
        ["account", ACCOUNT, "Description=learners", "Organization=shardlab"],
        ["user", USER, f"Account={ACCOUNT}"],
    ):
        run("sacctmgr", "-i", "add", *words, stdout=subprocess.DEVNULL)


def node(name: str) -> None:
    """One slurmd in its namespaces, with its own host name, hosts file, /tmp, and no name servers."""
    inside = (
        f"hostname {name} && mount --bind {HOME}/hosts /etc/hosts && mount --bind {HOME}/resolv.conf /etc/resolv.conf"
        f" && mount -t tmpfs -o mode=1777 tmpfs /tmp && exec slurmd -D -N {name}"
    )
    daemon(f"slurmd-{name}", "nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "--mount", "sh", "-c", inside)


def names(nodes: int) -> list[str]:
    """Host names of the nodes."""
    return [f"n{number}" for number in range(1, nodes + 1)]


def address(name: str) -> str:
    """Address of a node."""
    return f"{NETWORK}.{10 + int(name[1:])}"


if __name__ == "__main__":
    main()

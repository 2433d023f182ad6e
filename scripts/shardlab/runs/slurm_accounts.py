"""A user's accounts, and the limits of accounts and QOS, as sacctmgr reports them: what of a call they refuse."""

import getpass
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardlab.runs import slurm
from shardlab.runs.slurm_limits import minutes
from shardlab.runs.slurm_request import Request
from shardlab.settings.sites import Slurm

ASSOCIATION = "Cluster,Account,Partition,QOS,DefaultQOS,MaxJobs,MaxSubmit,MaxWall,MaxTRES,GrpTRES,GrpSubmit"
QOS = "Name,MaxJobsPU,MaxSubmitPU,MaxSubmitPA,MaxWall,MaxTRES,MaxTRESPU,MaxTRESPA,GrpTRES"
"""Fields of sacctmgr. PU: of all jobs of a user, PA: of an account; MaxTRES: of a job; Grp: of all jobs together."""
TOGETHER = {"MaxTRES": "a job", "MaxTRESPU": "all jobs of a user", "MaxTRESPA": "all jobs of an account"}
"""What a limit of resources is for; Grp limits: everybody's jobs."""
DEFAULT_QOS = "normal"

Row = dict[str, str]


@dataclass
class Answer:
    """What is said of a call, and what is wrong with it, as sentences."""

    said: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class NoAnswer(Exception):
    """Accounting cannot be asked; the message says why."""


def check(asked: Slurm, requests: Sequence[Request], partition_qos: dict[str, str], jobs: int | None) -> Answer:
    """Compare the account, and the limits of a user's accounts and QOS, with what a call requests.

    ``partition_qos``: the QOS of each partition that has one; ``jobs``: that Snakemake submits at a time.
    """
    answer = Answer()
    try:
        user = getpass.getuser()
        associations = _rows("assoc", ASSOCIATION, f"where=user={user}")
        clusters = {row["Cluster"] for row in associations}
        if len(clusters) > 1 and (name := _cluster()) in clusters:
            associations = [row for row in associations if row["Cluster"] == name]
        if not associations:
            answer.said.append(f"account: Slurm records none for {user}, so none limits the call")
            return answer
        users = _rows("user", "User,DefaultAccount", f"where=name={user}")
        qos = {row["Name"]: row for row in _rows("qos", QOS)}
    except NoAnswer as error:
        answer.said.append(f"account and limits: unknown, because {error}")
        return answer
    default = users[0]["DefaultAccount"] if users else ""
    account = _account(asked.account, default, sorted({row["Account"] for row in associations}), answer)
    if account is None:
        return answer
    of_account = [row for row in associations if row["Account"] == account]
    limits: dict[tuple[str, str], tuple[Row, str, list[Request]]] = {}
    for request in requests:
        partition, name = request.queue
        association = _of_partition(of_account, partition)
        if name and association["QOS"] and name not in association["QOS"].split(","):
            allowed = ", ".join(association["QOS"].split(","))
            answer.wrong.append(
                f"QOS {name} is not one of account {account}; in the site's file, set slurm.qos or that of the queue "
                f"in slurm.queues to one of: {allowed}"
            )
            continue
        both = (name or association["DefaultQOS"] or DEFAULT_QOS, partition_qos.get(partition or "", ""))
        sources = [("account", account, association)]
        sources += [("QOS", each, qos[each]) for each in dict.fromkeys(both) if each in qos]
        for kind, each, row in sources:
            limits.setdefault((kind, each), (row, f"{kind} {each}", []))[2].append(request)
    for row, source, local in limits.values():
        _compare(row, source, local, _at_a_time(local, slurm.limits(asked), jobs), answer)
    answer.wrong[:] = dict.fromkeys(answer.wrong)
    return answer


def _account(named: str | None, default: str, known: list[str], answer: Answer) -> str | None:
    """Return the account that is charged; None if there is none."""
    choice = f"set slurm.account to one of: {', '.join(known)}"
    if named is not None and named.lower() not in known:
        answer.wrong.append(f"slurm.account is {named}, which is not an account of yours; {choice}")
        return None
    if named is None and default not in known:
        answer.wrong.append(f"you have no default account; {choice}")
        return None
    account = named.lower() if named else default
    others = [name for name in known if name != account]
    also = f"; also yours: {', '.join(others)}" if others else ""
    answer.said.append(f"account: {account}{'' if named else ', your default'}{also}")
    return account


def _of_partition(rows: list[Row], partition: str | None) -> Row:
    """Return the association for jobs on a partition: its own, or the one for all of them."""
    by_name = {row["Partition"]: row for row in rows}
    return by_name.get(partition or "") or by_name.get("") or rows[0]


def _at_a_time(requests: list[Request], limits: dict[str, int], jobs: int | None) -> int:
    """Return how many of these jobs a call submits at a time; ``jobs``: of all."""
    own = [{name for name in limits if name in request.resources} for request in requests]
    return min(jobs or 0, sum(limits[name] for name in set[str]().union(*own))) if all(own) else jobs or 0


def _compare(row: Row, source: str, requests: list[Request], jobs: int, answer: Answer) -> None:
    """Compare the limits of an account or a QOS with the requests that they are for; ``jobs``: submitted at a time."""
    # A job of a run follows the one of another stage.
    of_stages = Counter[str]()
    for request in requests:
        of_stages[request.stage] += request.count
    submitted = min(max(of_stages.values()), jobs)
    longest = max(requests, key=lambda request: request.minutes)
    most = minutes(row.get("MaxWall", ""))
    if most is not None and longest.minutes > most:
        answer.wrong.append(
            f"{source} limits jobs to {most} min, but {longest.what} requests {longest.minutes}; lower slurm.runtime"
        )
    for field_, whose in {**TOGETHER, "GrpTRES": "everybody's jobs"}.items():
        for unit, limit in _tres(row.get(field_, "")).items():
            largest = max(requests, key=lambda request: _wanted(request, unit))
            wanted, name = _wanted(largest, unit), NAMES[unit]
            if wanted > limit:
                answer.wrong.append(
                    f"{source} gives {whose} {limit} {name}, but {largest.what} requests {wanted}, so it would never "
                    "start; lower nodes or ranks_per_node, or choose another queue or QOS in the site's file"
                )
            elif field_ != "MaxTRES" and wanted:
                answer.said.append(
                    f"limit: {source} gives {whose} {limit} {name} at a time: {limit // wanted} times {largest}"
                )
    for field_ in ("MaxSubmit", "MaxSubmitPU", "MaxSubmitPA", "GrpSubmit"):
        if (count := row.get(field_, "")).isdigit() and submitted > int(count):
            answer.wrong.append(
                f"{source} lets {count} jobs wait or run, and this call may submit {submitted}, of which Slurm would "
                f"refuse the others; set jobs_max: {count} for the queue in slurm.queues, or slurm.jobs_max"
            )
    for field_ in ("MaxJobs", "MaxJobsPU"):
        if (count := row.get(field_, "")).isdigit():
            answer.said.append(f"limit: {source} runs {count} of your jobs at a time; others wait")


NAMES = {"gres/gpu": "GPUs", "node": "nodes", "cpu": "cores"}
"""Units of limits that are compared, and what people call them."""


def _wanted(request: Request, unit: str) -> int:
    return {"gres/gpu": request.gpus, "node": request.nodes, "cpu": request.cores}[unit]


def _tres(text: str) -> dict[str, int]:
    """Convert ``cpu=16,gres/gpu=8`` to numbers, of the units that are compared."""
    pairs = (pair.partition("=") for pair in text.split(","))
    return {name: int(number) for name, _, number in pairs if name in NAMES and number.isdigit()}


def _cluster() -> str | None:
    shown = re.search(r"^ClusterName\s*= (\S+)", slurm.answer_or_none(["scontrol", "show", "config"]) or "", re.M)
    return shown[1] if shown else None


def _rows(what: str, fields: str, *conditions: str) -> list[Row]:
    """Return the rows that sacctmgr shows.

    Raises:
        NoAnswer: it is missing, or accounting does not answer.
    """
    if shutil.which("sacctmgr") is None:
        raise NoAnswer("sacctmgr was not found")
    where = [word for condition in conditions for word in condition.split("=", 1)]
    try:
        done = slurm.client(["sacctmgr", "--noheader", "--parsable2", "show", what, *where, f"format={fields}"])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"sacctmgr does not answer ({error})") from None
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise NoAnswer(f"sacctmgr does not answer ({reason[-1].strip() if reason else f'status {done.returncode}'})")
    lines = filter(None, done.stdout.splitlines())
    return [dict(zip(fields.split(","), line.split("|"), strict=True)) for line in lines]

"""A picture of a strategy, from a run's records: what each rank holds of the batch, of weights, gradients and
optimizer state, and what is sent in a step, between whom and when.
"""

from collections import defaultdict
from html import escape
from itertools import pairwise

from shardlab.records.reports import Kind, TrainReport
from shardlab.records.timeline import Timeline
from shardlab.report.units import readable_bytes
from shardlab.settings.mesh import AXES, OVER, ParallelDims, axes_in
from shardlab.settings.types import Run

RANKS = 8
"""Maximum number of ranks in a picture: the first ones."""
WIDTH, LEFT, GAP = 700, 84, 12
"""Width of the picture, of its labels, and of the space between two ranks, in pixels."""
STATES: tuple[Kind, ...] = ("weights", "gradients", "optimizer")
COLORS = {"batch": "#b279a2", "weights": "#4c78a8", "gradients": "#f58518", "optimizer": "#54a24b"}
STYLE = (
    "<style>.technique text { fill: #1f2328; } .technique .soft { fill: #57606a; }"
    " .technique .line { stroke: #1f2328; } .technique .whole { fill: none; stroke: #8c959f; }"
    " @media (prefers-color-scheme: dark) { .technique text { fill: #e6edf3; } .technique .soft { fill: #9aa6b2; }"
    " .technique .line { stroke: #e6edf3; } }</style>"
)


def picture(run: TrainReport, single: TrainReport, timeline: Timeline | None) -> str:
    """Return the picture (SVG) of a run whose memory was measured; of parts of what ``single`` holds."""
    mesh = ParallelDims(run.mesh)
    ranks = range(min(RANKS, run.world_size))
    column = (WIDTH - LEFT) / len(ranks)
    lefts = [LEFT + round(column * rank) for rank in ranks]
    width = round(column) - GAP
    parts, y = [], 16
    for rank, x in zip(ranks, lefts, strict=True):
        place = ", ".join(f"{axis} {index}" for axis, index in coordinates(mesh, rank).items())
        parts += [_text(x, y, f"rank {rank}", bold=True), _text(x, y + 14, place, size=10, kind="soft")]
    y += 24
    parts.append(_text(0, y + 16, "batch"))
    head_and_tail = Run.model_validate(run.settings).options.splits_head_and_tail
    for x, rank in zip(lefts, ranks, strict=True):
        parts.append(_box(x, y, width, 22))
        for left, top, wide, high in batch_of(mesh, rank, head_and_tail=head_and_tail):
            parts.append(_box(x + left * width, y + top * 22, wide * width, high * 22, COLORS["batch"]))
    y += 30
    for kind in STATES:
        shares = [rank.largest[kind] / max(1, single.held(kind) or 0) for rank in run.tensor_bytes or []]
        parts.append(_text(0, y + 11, kind))
        for x, rank in zip(lefts, ranks, strict=True):
            begin, share = part_of(mesh, run.world_size, rank, shares), min(1.0, shares[rank])
            parts += [_box(x, y, width, 12), _box(x + begin * width, y, share * width, 12, COLORS[kind])]
            parts.append(_text(x, y + 23, f"{shares[rank]:.0%}", size=10, kind="soft"))
        y += 28
    for label, arrows, groups in _exchanges(mesh, timeline, ranks):
        y += 16
        parts.append(_text(0, y, label, size=11))
        y += 4
        last = -1
        for group in groups:
            # Groups whose ranks lie between those of another one have a line of their own.
            y += 8 if group[0] < last or last < 0 else 0
            last = group[-1]
            places = [lefts[rank] + width // 2 for rank in group]
            parts += [f'<circle cx="{x}" cy="{y}" r="3.5" class="line"/>' for x in places]
            heads = ' marker-start="url(#head)" marker-end="url(#head)"' if arrows else ""
            parts += [f'<path d="M{a + 5} {y}H{b - 5}" class="line"{heads}/>' for a, b in pairwise(places)]
        y += 6
    head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0L8 4L0 8Z" class="line"/></marker></defs>'
    )
    size = f'viewBox="0 0 {WIDTH} {y + 8}" width="{WIDTH}" height="{y + 8}"'
    label = f"{run.strategy} on {run.workload}: what each rank holds and sends in a step"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="technique" {size} role="img" aria-label="{escape(label)}" '
            'font-family="Helvetica, Arial, sans-serif">',
            STYLE,
            head,
            *parts,
            "</svg>\n",
        ]
    )


def coordinates(mesh: ParallelDims, rank: int) -> dict[str, int]:
    """Return the index of a rank along each axis, also along those that group others (``ep``)."""
    place = {axis: rank // mesh.stride(axis) % degree for axis, degree in mesh.factors.items()}
    among = {axis: degree for axis, degree in mesh.root.items() if AXES[axis].among}
    return place | {axis: mesh.loss_part(place) % degree for axis, degree in among.items()}


def batch_of(mesh: ParallelDims, rank: int, *, head_and_tail: bool) -> list[tuple[float, float, float, float]]:
    """Return the parts of the batch that a rank computes: left, top, width, height, of a batch whose samples lie side
    by side, each from top to bottom.
    """
    place, parts = coordinates(mesh, rank), mesh.parts("sequence")
    wide, index = 1 / mesh.data_size, mesh.sequence_rank(place)
    pieces = [index, 2 * parts - 1 - index] if head_and_tail and parts > 1 else [index]
    high = 1 / (parts * len(pieces))
    return [(mesh.data_rank(place) * wide, piece * high, wide, high) for piece in pieces]


def part_of(mesh: ParallelDims, world_size: int, rank: int, shares: list[float]) -> float:
    """Return where the part begins that a rank holds, as a fraction of the whole; parts of ranks may overlap.

    ``shares``: the fraction that each rank holds. Ranks that split something hold consecutive parts; DeepSpeed's, which
    have no mesh, hold those of all ranks.
    """
    axes = mesh.axes("layers", "states", "tensors", "experts") if mesh.root else ()
    place = coordinates(mesh, rank)
    index, count = 0, 1
    for axis in axes:
        if not AXES[axis].among or not mesh.sharded:
            index, count = index * mesh.degree(axis) + place[axis], count * mesh.degree(axis)
    if not axes:
        index, count = rank, world_size
    return 0.0 if count == 1 else max(0.0, 1 - shares[rank]) * index / (count - 1)


def members(mesh: ParallelDims, axis: str, rank: int) -> tuple[int, ...]:
    """Return what the ranks have in common that a collective along an axis, or a product or quotient of axes, joins."""
    place = coordinates(mesh, rank)
    of = axes_in(axis)
    grouping = [name for name in of if AXES[name].among]
    if grouping:
        inside = mesh.axes(*AXES[grouping[0]].among)
        others = tuple(index for name, index in place.items() if name not in (*inside, *grouping))
        return (*others, mesh.loss_part(place) // mesh.degree(*grouping))
    if not of:
        return ()
    divided = axis.partition(OVER)[2]
    return tuple(index for name, index in place.items() if name not in of and (name == divided or name in mesh.factors))


def _exchanges(mesh: ParallelDims, timeline: Timeline | None, ranks: range) -> list[tuple[str, bool, list[list[int]]]]:
    """Return what is sent, in the order in which it begins: in words, whether it goes from rank to rank, and the groups
    of ranks.
    """
    if timeline is None:
        return []
    sent: dict[tuple[str, str, str], list[list[float]]] = defaultdict(lambda: [[] for _ in timeline.sent])
    for number, (spans, events) in enumerate(zip(timeline.phases, timeline.sent, strict=True)):
        for event in events:
            phase = next((span.name for span in spans if span.start <= event.start <= span.end), "update")
            # A pipeline's rank sends what it computed as it begins with the next micro-batch, in whatever pass.
            phase = "forward and backward" if event.collective == "send" else phase
            sent[phase, event.collective, event.axis][number].append(event.bytes)
    found = []
    for (phase, collective, axis), of_ranks in sent.items():
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank in ranks:
            groups[members(mesh, axis, rank)].append(rank)
        each = max(of_ranks, key=sum)
        times = f", {len(each)} times" if len(each) > 1 else ""
        over = f" over {axis}" if axes_in(axis) else ""
        label = f"{phase}: {collective.replace('_', '-')}{over}{times}, {readable_bytes(sum(each))} per rank"
        found.append((label, collective == "send", [group for group in groups.values() if len(group) > 1]))
    return found


def _box(x: float, y: float, width: float, height: float, color: str = "") -> str:
    look = f'fill="{color}"' if color else 'class="whole"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {look}/>'


def _text(x: int, y: int, words: str, *, size: int = 12, bold: bool = False, kind: str = "") -> str:
    look = (' font-weight="bold"' if bold else "") + (f' class="{kind}"' if kind else "")
    return f'<text x="{x}" y="{y}" font-size="{size}"{look}>{escape(words)}</text>'

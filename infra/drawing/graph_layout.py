"""A layered drawing of a directed graph, left to right: a minimal form of Sugiyama's method.

Layers are longest paths from a root; crossings are reduced by the mean of the neighbours' positions; heights keep lines
as straight as the gaps allow (isotonic regression by pooling adjacent violators). Boxes with more descendants weigh
more, so that the main chain is straight. An arrow across several layers reserves a slot in each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

SWEEPS = 12
THREAD = 12.0  # height of the slot of a passing arrow


@dataclass(frozen=True)
class GraphLayout:
    layer: list[int]  # the layer of each box
    y: list[float]  # the middle of each box
    ways: dict[tuple[int, int], list[float]]  # for each strong arrow, its heights in the layers it crosses
    weak: list[tuple[int, int]]  # redundant arrows: their start is also an ancestor on another path
    height: float


def layered(heights: Sequence[float], arrows: Sequence[tuple[int, int]], gap: float) -> GraphLayout:
    """Lay out boxes of the given heights, joined by arrows (from, to)."""
    count = len(heights)
    arrows, below = _without_cycles(count, arrows)
    order = sorted(range(count), key=lambda box: -below[box].bit_count())  # topological: parents have more descendants
    layer, strong, weak = _layers(arrows, below, order)
    columns: list[list[int]] = [[] for _ in range(1 + max(layer, default=0))]
    for box in order:
        columns[layer[box]].append(box)
    sizes, ways, steps = list(heights), dict[tuple[int, int], list[int]](), list[tuple[int, int]]()
    weights = [float(bits.bit_count() ** 2) for bits in below]
    for start, end in strong:
        chain = [start]
        for column in columns[layer[start] + 1 : layer[end]]:
            column.append(len(sizes))
            chain.append(len(sizes))
            sizes.append(THREAD)
            weights.append(0.5)
        steps += zip(chain, [*chain[1:], end], strict=True)
        ways[start, end] = chain[1:]
    y = _heights(columns, sizes, weights, steps, gap)
    top = min((at - size / 2 for at, size in zip(y, sizes, strict=True)), default=0.0)
    bottom = max((at + size / 2 for at, size in zip(y, sizes, strict=True)), default=0.0)
    y = [at - top for at in y]
    return GraphLayout(
        layer, y[:count], {arrow: [y[box] for box in way] for arrow, way in ways.items()}, weak, bottom - top
    )


def _without_cycles(count: int, arrows: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the arrows without those that close a cycle, and the descendants of each box, itself included, as the bits
    of one number."""
    below = [1 << box for box in range(count)]
    acyclic: list[tuple[int, int]] = []
    for start, end in dict.fromkeys(arrows):
        if not below[end] >> start & 1:
            acyclic.append((start, end))
            for box, bits in enumerate(below):
                if bits >> start & 1:
                    below[box] |= below[end]
    return acyclic, below


def _layers(
    arrows: Sequence[tuple[int, int]], below: Sequence[int], order: Sequence[int]
) -> tuple[list[int], list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the layer of each box, the arrows that no longer path implies, and the others."""
    parents: list[list[int]] = [[] for _ in order]
    for start, end in arrows:
        parents[end].append(start)
    layer = [0] * len(order)
    strong: list[tuple[int, int]] = []
    weak: list[tuple[int, int]] = []
    for box in order:
        for parent in parents[box]:
            layer[box] = max(layer[box], layer[parent] + 1)
            implied = any(below[parent] >> other & 1 for other in parents[box] if other != parent)
            (weak if implied else strong).append((parent, box))
    return layer, strong, weak


def _heights(
    columns: list[list[int]],
    sizes: Sequence[float],
    weights: Sequence[float],
    steps: Sequence[tuple[int, int]],
    gap: float,
) -> list[float]:
    """Return the middle of every box and thread."""
    before: list[list[int]] = [[] for _ in sizes]
    after: list[list[int]] = [[] for _ in sizes]
    for start, end in steps:
        before[end].append(start)
        after[start].append(end)
    y = [0.0] * len(sizes)
    for column in columns:
        _stack(column, y, [0.0] * len(column), sizes, weights, gap)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        beside = before if forward else after
        for column in columns if forward else reversed(columns):
            if sweep >= SWEEPS - 4 and not forward:
                beside = [one + other for one, other in zip(before, after, strict=True)]
            goals = {box: _mean(beside[box], y, weights, y[box]) for box in column}
            if sweep < SWEEPS - 4:  # the last sweeps keep the order and straighten the lines
                column.sort(key=lambda box: (round(goals[box]), -weights[box], y[box]))
            _stack(column, y, [goals[box] for box in column], sizes, weights, gap)
    return y


def _stack(
    column: Sequence[int],
    y: list[float],
    goals: Sequence[float],
    sizes: Sequence[float],
    weights: Sequence[float],
    gap: float,
) -> None:
    """Put the boxes of a column as near to their goals as their order and their sizes allow."""
    offsets, reach = [], 0.0
    for number, box in enumerate(column):
        if number:
            reach += (sizes[column[number - 1]] + sizes[box]) / 2 + gap
        offsets.append(reach)
    blocks: list[tuple[float, float, int]] = []  # (mean of goals minus offset, weight, how many)
    for box, at, offset in zip(column, goals, offsets, strict=True):
        mean, weight, many = at - offset, weights[box] ** 2, 1
        while blocks and blocks[-1][0] > mean:
            other, heavy, more = blocks.pop()
            mean = (mean * weight + other * heavy) / (weight + heavy)
            weight, many = weight + heavy, many + more
        blocks.append((mean, weight, many))
    placed = [mean for mean, _, many in blocks for _ in range(many)]
    for box, base, offset in zip(column, placed, offsets, strict=True):
        y[box] = base + offset


def _mean(boxes: Sequence[int], y: Sequence[float], weights: Sequence[float], otherwise: float) -> float:
    """Return the weighted mean of the neighbours' positions."""
    if not boxes:
        return otherwise
    return sum(y[box] * weights[box] ** 2 for box in boxes) / sum(weights[box] ** 2 for box in boxes)

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
class Layout:
    layer: list[int]  # of each box
    y: list[float]  # the middle of each box
    ways: dict[tuple[int, int], list[float]]  # of each strong arrow: its heights in the layers it crosses
    weak: list[tuple[int, int]]  # redundant arrows: their start is also an ancestor on another path
    height: float


def layered(heights: Sequence[float], arrows: Sequence[tuple[int, int]], gap: float) -> Layout:
    """Lay out boxes of the given heights, joined by arrows (from, to)."""
    count = len(heights)
    arrows, order = _without_cycles(count, arrows)
    layer, strong, weak = _layers(count, arrows, order)
    columns: list[list[int]] = [[] for _ in range(1 + max(layer, default=0))]
    for box in order:
        columns[layer[box]].append(box)
    sizes, ways, steps = list(heights), dict[tuple[int, int], list[int]](), list[tuple[int, int]]()
    weights = _weights(count, strong, order)
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
    top = min((y[box] - sizes[box] / 2 for box in range(count)), default=0.0)
    bottom = max((y[box] + sizes[box] / 2 for box in range(count)), default=0.0)
    y = [at - top for at in y]
    return Layout(layer, y[:count], {arrow: [y[box] for box in way] for arrow, way in ways.items()}, weak, bottom - top)


def _without_cycles(count: int, arrows: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """The arrows without those that close a cycle, and the boxes in topological order."""
    children: list[list[int]] = [[] for _ in range(count)]
    for start, end in dict.fromkeys(arrows):
        if start != end:
            children[start].append(end)
    state, acyclic, done = [0] * count, list[tuple[int, int]](), list[int]()
    for root in range(count):
        if state[root]:
            continue
        stack = [(root, iter(children[root]))]
        state[root] = 1
        while stack:
            box, left = stack[-1]
            child = next(left, None)
            if child is None:
                state[box] = 2
                done.append(box)
                stack.pop()
            elif state[child] != 1:
                acyclic.append((box, child))
                if not state[child]:
                    state[child] = 1
                    stack.append((child, iter(children[child])))
    return acyclic, done[::-1]


def _layers(
    count: int, arrows: Sequence[tuple[int, int]], order: Sequence[int]
) -> tuple[list[int], list[tuple[int, int]], list[tuple[int, int]]]:
    """(layer of each box, arrows that say something new, the others); ancestors as bits of one number."""
    parents: list[list[int]] = [[] for _ in range(count)]
    for start, end in arrows:
        parents[end].append(start)
    layer, above = [0] * count, [0] * count
    strong: list[tuple[int, int]] = []
    weak: list[tuple[int, int]] = []
    for box in order:
        for parent in parents[box]:
            layer[box] = max(layer[box], layer[parent] + 1)
            above[box] |= above[parent] | 1 << parent
        for parent in parents[box]:
            implied = any(above[other] >> parent & 1 for other in parents[box])
            (weak if implied else strong).append((parent, box))
    return layer, strong, weak


def _weights(count: int, arrows: Sequence[tuple[int, int]], order: Sequence[int]) -> list[float]:
    """The weight of each box: the square of the number of its descendants, itself included."""
    children: list[list[int]] = [[] for _ in range(count)]
    for start, end in arrows:
        children[start].append(end)
    below = [0] * count
    for box in reversed(order):
        for child in children[box]:
            below[box] |= below[child] | 1 << child
    return [(1.0 + bits.bit_count()) ** 2 for bits in below]


def _heights(
    columns: list[list[int]],
    sizes: Sequence[float],
    weights: Sequence[float],
    steps: Sequence[tuple[int, int]],
    gap: float,
) -> list[float]:
    """The middle of every box and thread."""
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
    """Put the boxes of a column as near to where they are wanted as their order and their sizes allow."""
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
    """Where the neighbours are, on the weighted average."""
    if not boxes:
        return otherwise
    return sum(y[box] * weights[box] ** 2 for box in boxes) / sum(weights[box] ** 2 for box in boxes)

"""The layered layout of any graph."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from baton.infra.drawing.graph_layout import layered

GAP = 10.0


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[float], list[tuple[int, int]]]:
    count = draw(st.integers(1, 25))
    heights = draw(st.lists(st.floats(20, 90), min_size=count, max_size=count))
    node = st.integers(0, count - 1)
    return heights, draw(st.lists(st.tuples(node, node), max_size=60))


@given(graphs())
def test_no_two_boxes_of_a_layer_overlap(graph: tuple[list[float], list[tuple[int, int]]]) -> None:
    heights, arrows = graph
    found = layered(heights, arrows, GAP)
    for layer in set(found.layer):
        boxes = sorted((box for box in range(len(heights)) if found.layer[box] == layer), key=lambda box: found.y[box])
        for above, below in pairwise(boxes):
            assert found.y[below] - found.y[above] >= (heights[above] + heights[below]) / 2 + GAP - 1e-6


@given(graphs())
def test_every_arrow_points_to_a_later_layer_and_only_those_closing_a_cycle_are_dropped(
    graph: tuple[list[float], list[tuple[int, int]]],
) -> None:
    heights, arrows = graph
    found = layered(heights, arrows, GAP)
    drawn = {*found.ways, *found.weak}
    assert drawn <= set(arrows)
    for start, end in drawn:
        assert found.layer[start] < found.layer[end]
    for (start, end), way in found.ways.items():
        assert len(way) == found.layer[end] - found.layer[start] - 1
    forward = {(start, end) for start, end in arrows if start < end}
    if all(start < end for start, end in arrows):
        assert drawn == forward


@example(([40.0] * 5, [(0, 2), (0, 4), (1, 3), (3, 4)]))
@given(graphs())
def test_nothing_leaves_the_drawing(graph: tuple[list[float], list[tuple[int, int]]]) -> None:
    heights, arrows = graph
    found = layered(heights, arrows, GAP)
    for y, height in zip(found.y, heights, strict=True):
        assert height / 2 - 1e-6 <= y <= found.height - height / 2 + 1e-6
    assert all(0 <= y <= found.height for way in found.ways.values() for y in way)


@given(graphs())
def test_the_same_graph_is_drawn_the_same(graph: tuple[list[float], list[tuple[int, int]]]) -> None:
    assert layered(*graph, GAP) == layered(*graph, GAP)


def test_a_chain_is_a_straight_line() -> None:
    found = layered([40, 60, 40, 40], [(0, 1), (1, 2), (2, 3)], GAP)
    assert len({round(y) for y in found.y}) == 1
    assert found.layer == [0, 1, 2, 3]


def test_a_redundant_arrow_is_weak() -> None:
    found = layered([40, 40, 40], [(0, 1), (1, 2), (0, 2)], GAP)
    assert found.weak == [(0, 2)]


def test_the_main_chain_stays_straight_beside_its_leaves() -> None:
    """The chain is 0 → 1 → 2 → 3, where each node has two leaves."""
    chain = [(0, 1), (1, 2), (2, 3)]
    found = layered([40] * 12, [*chain, *((box, 4 + 2 * box + leaf) for box in range(4) for leaf in (0, 1))], GAP)
    assert max(found.y[:4]) - min(found.y[:4]) < 20

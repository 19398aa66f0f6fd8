"""Draw an execution's artifacts as a graph, by their parents' digests."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markupsafe import Markup

from infra.charts import Figure
from tasks.pages.source import Source

BOX_WIDTH, BOX_HEIGHT = 124, 44
PITCH_X, PITCH_Y = 150, 72  # from one box to the next

BOX = Markup(
    '<g class="node" transform="translate({} {})"><title>{} {}</title>'
    f'<rect width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
    '<text class="name" x="10" y="18">{}</text><text class="digest" x="10" y="34">{}</text></g>'
)


@dataclass(frozen=True)
class Node:
    source: Source
    layer: int  # the longest path from a root
    lane: int
    parents: tuple[int, ...]  # indices of nodes


def lineage(sources: list[Source]) -> Figure:
    """Left to right on a wide screen, top to bottom on a phone."""
    nodes = layout(sources)
    edges = []
    for node in nodes:
        parents = " and ".join(nodes[parent].source.name for parent in node.parents)
        edges.append(f"{node.source.name} from {parents}" if parents else f"{node.source.name} from outside")
    alt = "Lineage: " + "; ".join(edges)
    return Figure(_draw(nodes, alt, down=False), alt, narrow=_draw(nodes, alt, down=True))


def layout(sources: list[Source]) -> list[Node]:
    """One node per source, in layers, so that every arrow points to a later layer. The graph is transitively reduced:
    a parent that is also an ancestor of another parent gets no arrow."""
    parents = _parents(sources)
    ancestors: dict[int, set[int]] = {}
    layers: dict[int, int] = {}

    def visit(index: int) -> None:
        if index in layers:
            return
        ancestors[index] = set()
        for parent in parents[index]:
            visit(parent)
            ancestors[index] |= {parent} | ancestors[parent]
        layers[index] = max((layers[parent] + 1 for parent in parents[index]), default=0)

    for index in range(len(sources)):
        visit(index)
    direct = [{one for one in of if not any(one in ancestors[other] for other in of - {one})} for of in parents]
    has_children = set().union(*direct) if direct else set()
    lanes: dict[int, list[int]] = {}
    # nodes with children come first, so that the main chain is a straight line
    for index in sorted(range(len(sources)), key=lambda i: (layers[i], i not in has_children, i)):
        lanes.setdefault(layers[index], []).append(index)
    return [
        Node(source, layers[index], lanes[layers[index]].index(index), tuple(sorted(direct[index])))
        for index, source in enumerate(sources)
    ]


def _parents(sources: list[Source]) -> list[set[int]]:
    """The indices of what each source was made from. Among equal contents, preferably one that was not made from
    the same content as the source: that one is older."""
    at: dict[str, list[int]] = {}
    for index, source in enumerate(sources):
        at.setdefault(source.manifest.digest, []).append(index)
    parents: list[set[int]] = [set() for _ in sources]

    def above(index: int, step: Callable[[int], Iterable[int]]) -> set[int]:
        reached, waiting = set[int](), [index]
        while waiting:
            new = set(step(waiting.pop())) - reached
            reached |= new
            waiting += new
        return reached

    def of_equal_content(index: int) -> list[int]:
        return [one for digest in sources[index].made_from().values() for one in at.get(digest, ())]

    for index, source in enumerate(sources):
        same_content = set(at[source.manifest.digest])
        for digest in source.made_from().values():
            candidates = sorted(at.get(digest, ()), key=lambda one: bool(above(one, of_equal_content) & same_content))
            older = (one for one in candidates if index not in {one, *above(one, parents.__getitem__)})
            parents[index].update([*older][:1])
    return parents


def _draw(nodes: list[Node], alt: str, *, down: bool) -> Markup:
    def corner(node: Node) -> tuple[int, int]:
        x, y = (node.lane, node.layer) if down else (node.layer, node.lane)
        return x * PITCH_X + 2, y * PITCH_Y + 2

    parts = []
    for node in nodes:
        for parent in node.parents:
            parts.append(_arrow(corner(nodes[parent]), corner(node), down))
    for node in nodes:
        x, y = corner(node)
        manifest = node.source.manifest
        parts.append(BOX.format(x, y, manifest.kind, manifest.digest, _short(node.source.name), node.source.digest))
    layers = 1 + max((node.layer for node in nodes), default=0)
    lanes = 1 + max((node.lane for node in nodes), default=0)
    columns, rows = (lanes, layers) if down else (layers, lanes)
    wide, high = (columns - 1) * PITCH_X + BOX_WIDTH + 4, (rows - 1) * PITCH_Y + BOX_HEIGHT + 4
    head = Markup('<svg class="graph" viewBox="0 0 {} {}" width="{}" role="img" aria-label="{}">').format(
        wide, high, wide, alt
    )
    return head + Markup("").join(parts) + Markup("</svg>")


def _arrow(start: tuple[int, int], end: tuple[int, int], down: bool) -> Markup:
    """A curve from the far side of one box to the near side of the next."""
    if down:
        x1, y1, x2, y2 = start[0] + BOX_WIDTH // 2, start[1] + BOX_HEIGHT, end[0] + BOX_WIDTH // 2, end[1] - 1
        middle = (y1 + y2) // 2
        path = f"M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2 - 5}"
        head = f"M{x2 - 4} {y2 - 7}L{x2} {y2}L{x2 + 4} {y2 - 7}"
    else:
        x1, y1, x2, y2 = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT // 2, end[0] - 1, end[1] + BOX_HEIGHT // 2
        middle = (x1 + x2) // 2
        path = f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2 - 5} {y2}"
        head = f"M{x2 - 7} {y2 - 4}L{x2} {y2}L{x2 - 7} {y2 + 4}"
    return Markup('<path class="edge" d="{}"/><path class="tip" d="{}Z"/>').format(path, head)


def _short(name: str) -> str:
    return name if len(name) <= 15 else name[:14] + "…"

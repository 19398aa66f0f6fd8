"""Draw an execution's artifacts as a graph, by their parents' digests."""

from collections.abc import Callable, Iterable

from markupsafe import Markup

from baton.infra.drawing.graph import Artifact, Box, Marks, draw
from baton.tasks.pages.about import heading
from baton.tasks.pages.html import anchor
from baton.tasks.pages.source import Source

RESULT = "Result"  # the section with the evaluations


def lineage(sources: list[Source]) -> Markup:
    """Draw the graph from left to right, with each artifact as a link to its section."""
    parents = _parents(sources)
    edges = []
    for source, numbers in zip(sources, parents, strict=True):
        edges.append(f"{source.name} from {' and '.join(sources[one].name for one in sorted(numbers)) or 'outside'}")
    alt = "Lineage: " + "; ".join(edges)
    boxes = [
        Box(str(index), str(index), parents=[str(one) for one in sorted(numbers)])
        for index, numbers in enumerate(parents)
    ]
    labels = {
        str(index): Artifact(source.manifest.digest, source.manifest.kind, source.name, source.digest, source.family)
        for index, source in enumerate(sources)
    }

    def link(node: str) -> str:
        source = sources[int(node)]
        return f"#{anchor(RESULT if source.manifest.kind == 'eval_report' else heading(source))}"

    return draw(boxes, labels, {}, link, Marks(), alt)


def _parents(sources: list[Source]) -> list[set[int]]:
    """Return the indices of the artifacts from which each source was made. Of several with equal contents, one that was
    not made from the same content as the source is preferred, since it is older."""
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

    def content_parents(index: int) -> list[int]:
        return [one for digest in sources[index].made_from().values() for one in at.get(digest, ())]

    for index, source in enumerate(sources):
        same_content = set(at[source.manifest.digest])
        for digest in source.made_from().values():
            candidates = sorted(at.get(digest, ()), key=lambda one: bool(above(one, content_parents) & same_content))
            older = (one for one in candidates if index not in {one, *above(one, parents.__getitem__)})
            parents[index].update([*older][:1])
    return parents

"""The part of the graph that is drawn: boxes, each an artifact with the runs that made it, and folds for the rest.

Many children of one kind are folded into one box, except the newest; so are the boxes beyond `limit`. A fold opens
when its node's id is in `opened`.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from infra.lineage.graph import Graph

FEW = 4  # children of one title that are all shown
SHOWN = 3  # of more, the newest
LIMIT = 60  # boxes, by default
MOST = 300


@dataclass
class Box:
    """An artifact with its makers; a run without a result; a fold with the number behind it; or stages to come."""

    key: str  # digest, run id, or what the fold belongs to
    artifact: str | None = None
    runs: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)  # keys
    folded: int = 0
    title: str = ""
    to_come: int = 0  # stages that have not started


def of_execution(graph: Graph, execution: str, opened: Iterable[str] = (), limit: int = MOST) -> list[Box]:
    """Its stages, cached ones included, with their inputs and outputs."""
    boxes: dict[str, Box] = {}
    for run in graph.stages(execution):
        box = boxes.setdefault(run.output or run.id, Box(run.output or run.id, run.output))
        box.runs.append(run.id)
        box.parents = list(dict.fromkeys([*box.parents, *graph.inputs(run.id).values()]))
    for parent in [parent for box in boxes.values() for parent in box.parents]:
        boxes.setdefault(parent, Box(parent, parent))  # of another execution
    return _folded(graph, boxes, frozenset(opened), limit)


def of_artifact(graph: Graph, focus: str, opened: Iterable[str] = (), limit: int = LIMIT) -> list[Box]:
    """Its ancestors and its descendants, the nearest first."""
    open_ = frozenset(opened)
    boxes = {focus: _box(graph, focus)}
    folds: dict[str, Box] = {}
    for upward in (True, False):
        waiting = deque([focus])
        most = limit // 2 if upward else limit  # ancestors leave half of the room to descendants
        while waiting:
            at = waiting.popleft()
            found = _parents(graph, at) if upward else _children(graph, at)
            shown, hidden = (found, {}) if upward else _some(graph, found, at in open_)
            new = [other for other in shown if other not in boxes]
            room = max(0, most - len(boxes))
            for other in new[:room]:
                boxes[other] = _box(graph, other)
                waiting.append(other)
            if len(new) > room:
                hidden = {**hidden, "relatives": new[room:]}
            for title, behind in hidden.items():
                key = f"fold:{'up' if upward else 'down'}:{at}:{title}"
                folds[key] = Box(key, None, [], [] if upward else [at], len(behind), title)
                if upward:
                    boxes[at].parents.append(key)
    return _closed({**boxes, **folds})


def _box(graph: Graph, artifact: str) -> Box:
    if artifact in graph.runs:
        return Box(artifact, None, [artifact], list(dict.fromkeys(graph.inputs(artifact).values())))
    makers = graph.parents(artifact)
    return Box(artifact, artifact, list(makers), _parents(graph, artifact))


def _parents(graph: Graph, artifact: str) -> list[str]:
    """The artifacts that it was made from."""
    return list(dict.fromkeys(digest for run in graph.parents(artifact) for digest in graph.parents(run)))


def _children(graph: Graph, artifact: str) -> list[str]:
    """The artifacts that were made from it, oldest first."""
    return list(dict.fromkeys(digest for run in graph.children(artifact) for digest in graph.children(run)))


def _some(graph: Graph, found: Sequence[str], opened: bool) -> tuple[list[str], dict[str, list[str]]]:
    """The children that are shown, and those that are folded, by title."""
    by_title: dict[str, list[str]] = {}
    for digest in found:
        by_title.setdefault(_stem(graph.runs[graph.parents(digest)[0]].title), []).append(digest)
    if opened:
        return list(found), {}
    hidden = {title: some[:-SHOWN] for title, some in by_title.items() if len(some) > FEW}
    away = {digest for some in hidden.values() for digest in some}
    return [digest for digest in found if digest not in away], hidden


def _folded(graph: Graph, boxes: dict[str, Box], opened: frozenset[str], limit: int) -> list[Box]:
    """Fold leaves of one title and the same parents into one box, and the boxes beyond the limit."""
    parents = {parent for box in boxes.values() for parent in box.parents}
    groups: dict[tuple[str, ...], list[str]] = {}
    for key, box in boxes.items():
        if box.runs and key not in parents and not opened & set(box.parents):
            groups.setdefault((_stem(graph.runs[box.runs[0]].title), *box.parents), []).append(key)
    for (title, *of), keys in groups.items():
        if len(keys) > FEW and of:
            for key in keys[:-SHOWN]:
                del boxes[key]
            fold = f"fold:down:{of[0]}:{title}"
            boxes[fold] = Box(fold, None, [], list(of), len(keys) - SHOWN, title)
    if len(boxes) > limit:
        kept = dict(list(boxes.items())[:limit])
        hidden = len(boxes) - limit
        boxes = {
            **kept,
            "fold:down:more:stages": Box("fold:down:more:stages", None, [], [next(reversed(kept))], hidden, "stages"),
        }
    return _closed(boxes)


def to_come(boxes: list[Box], titles: list[str]) -> list[Box]:
    """One box for the stages that have not started, behind the newest."""
    if not titles:
        return []
    return [Box("plan:to-come", None, [], [boxes[-1].key] if boxes else [], 0, ", ".join(titles), len(titles))]


def folded_at(key: str) -> str:
    """The node of a fold, from its key fold:<up|down>:<node>:<title>."""
    return key.split(":", 3)[2]


def _stem(title: str) -> str:
    """The title without its number: the stages of a sweep are of one kind."""
    return title.rstrip("0123456789 -_.") or title


def _closed(boxes: dict[str, Box]) -> list[Box]:
    """Keep only arrows between boxes that are drawn."""
    for box in boxes.values():
        box.parents = [parent for parent in dict.fromkeys(box.parents) if parent in boxes]
    return list(boxes.values())

"""The part of the graph that is drawn: boxes, each an artifact with the run that made it, and folds for the rest.

If equal contents were made several times, from different inputs, each has a separate box.

Many children of one kind are folded into one box, except the newest; so are the boxes beyond `limit`. A fold opens
when its node's id is in `opened`.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from baton.infra.drawing.graph import Box
from baton.infra.lineage.graph import FOLD, Graph

FEW = 4  # children of one title that are all shown
SHOWN = 3  # if there are more, the newest ones
LIMIT = 60  # boxes, by default
MOST = 300


def of_execution(graph: Graph, execution: str, opened: Iterable[str] = (), limit: int = MOST) -> list[Box]:
    """The stages of an execution, cached ones included, with their inputs and outputs."""
    boxes: dict[str, Box] = {}
    key_of: dict[str, str] = {}  # stage -> its box
    for run in graph.stages(execution):
        first = run.output if run.output and not run.handed_on else run.id
        key = key_of[run.id] = first if first not in boxes else run.id
        boxes[key] = Box(key, run.output, [run.id])
    for run in graph.stages(execution):
        box, read, origins = boxes[key_of[run.id]], graph.inputs(run.id), graph.ancestry.origins(run.id)
        made_from = run.relation.sources(run.output, read).values()
        box.parents = [key_of.get(origins.get(digest) or "", digest) for digest in made_from]
        box.others = [digest for digest in read.values() if digest not in made_from]
    for parent in [parent for box in boxes.values() for parent in (*box.parents, *box.others)]:
        boxes.setdefault(parent, Box(parent, parent))  # an artifact of another execution
    return _folded(graph, boxes, frozenset(opened), limit)


def of_artifact(graph: Graph, focus: str, opened: Iterable[str] = (), limit: int = LIMIT) -> list[Box]:
    """The ancestors and the descendants of an artifact, the nearest first."""
    open_ = frozenset(opened)
    boxes = {key: _box(graph, key) for key in (focus, *_later_makers(graph, focus))}
    folds: dict[str, Box] = {}
    chosen = list(boxes)
    for upward in (True, False):
        waiting = deque(chosen)
        most = limit // 2 if upward else limit  # ancestors leave half of the room to descendants
        while waiting:
            at = waiting.popleft()
            related = _parents(graph, at) if upward else _children(graph, at)
            shown, hidden = (related, {}) if upward else _some(graph, related, at in open_)
            new = [other for other in shown if other not in boxes]
            room = max(0, most - len(boxes))
            for other in new[:room]:
                boxes[other] = _box(graph, other)
                waiting.append(other)
            if len(new) > room:
                hidden = {**hidden, "relatives": new[room:]}
            for title, behind in hidden.items():
                key = f"{FOLD}{'up' if upward else 'down'}:{at}:{title}"
                folds[key] = Box(key, parents=[] if upward else [at], folded=len(behind), title=title)
                if upward:
                    boxes[at].parents.append(key)
    return _closed({**boxes, **folds})


def _box(graph: Graph, key: str) -> Box:
    run = _maker(graph, key)
    if run is None:
        return Box(key, key)
    return Box(key, graph.runs[run].output, [run], _parents(graph, key))


def _maker(graph: Graph, key: str) -> str | None:
    """The run of a box."""
    return key if key in graph.runs else graph.ancestry.maker(key)


def _key(graph: Graph, run: str) -> str:
    """The box of a run."""
    return graph.ancestry.first_output(run) or run


def _parents(graph: Graph, key: str) -> list[str]:
    """The boxes that a box was made from."""
    run = _maker(graph, key)
    origins = graph.ancestry.origins(run) if run else {}
    return [_key(graph, maker) if maker else digest for digest, maker in origins.items()]


def _children(graph: Graph, key: str) -> list[str]:
    """The boxes that were made from a box, oldest first."""
    maker = _maker(graph, key)
    digest = graph.runs[maker].output if maker else key
    readers = graph.ancestry.readers(digest or key)
    return [_key(graph, run) for run in readers if graph.ancestry.origins(run)[digest or key] == maker]


def _later_makers(graph: Graph, artifact: str) -> list[str]:
    """The boxes of later makers whose output was read too."""
    makers = (graph.ancestry.origins(run)[artifact] for run in graph.ancestry.readers(artifact))
    keys = dict.fromkeys(_key(graph, maker) for maker in makers if maker)
    return [key for key in keys if key != artifact]


def _some(graph: Graph, children: Sequence[str], opened: bool) -> tuple[list[str], dict[str, list[str]]]:
    """The children that are shown, and those that are folded, by title."""
    by_title: dict[str, list[str]] = {}
    for key in children:
        run = _maker(graph, key)
        by_title.setdefault(_stem(graph.runs[run].title) if run else "", []).append(key)
    if opened:
        return list(children), {}
    hidden = {title: some[:-SHOWN] for title, some in by_title.items() if len(some) > FEW}
    folded = {key for some in hidden.values() for key in some}
    return [key for key in children if key not in folded], hidden


def _folded(graph: Graph, boxes: dict[str, Box], opened: frozenset[str], limit: int) -> list[Box]:
    """Fold leaves of one title and the same parents into one box, and the boxes beyond the limit."""
    parents = {parent for box in boxes.values() for parent in (*box.parents, *box.others)}
    groups: dict[tuple[str, ...], list[str]] = {}
    for key, box in boxes.items():
        if box.runs and key not in parents and not opened & set(box.parents):
            groups.setdefault((_stem(graph.runs[box.runs[0]].title), *box.parents), []).append(key)
    for (title, *of), keys in groups.items():
        if len(keys) > FEW and of:
            for key in keys[:-SHOWN]:
                del boxes[key]
            fold = f"{FOLD}down:{of[0]}:{title}"
            boxes[fold] = Box(fold, parents=list(of), folded=len(keys) - SHOWN, title=title)
    if len(boxes) > limit:
        shown = dict(list(boxes.items())[:limit])
        fold = f"{FOLD}down:more:stages"
        more = Box(fold, parents=[next(reversed(shown))], folded=len(boxes) - limit, title="stages")
        boxes = {**shown, fold: more}
    return _closed(boxes)


def to_come(boxes: list[Box], titles: list[str]) -> list[Box]:
    """One box for the stages that have not started, behind the newest."""
    if not titles:
        return []
    parents = [boxes[-1].key] if boxes else []
    return [Box("plan:to-come", parents=parents, title=", ".join(titles), to_come=len(titles))]


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
        box.others = [other for other in dict.fromkeys(box.others) if other in boxes and other not in box.parents]
    return list(boxes.values())

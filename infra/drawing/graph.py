"""Draw the graph as SVG: an artifact has the shape of its kind, and the run that made it is a pill on top."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

from baton.infra.drawing.graph_layout import layered
from baton.infra.text import brief

if TYPE_CHECKING:
    from baton.infra.lineage.ancestry import Run  # pods lack the pages

WIDTH, CARD, PILL, SEAM = 136.0, 46.0, 22.0, 3.0
ACROSS, DOWN, MARGIN = 34.0, 18.0, 10.0  # gaps between boxes, and the margin
PILL_LETTERS = 14  # average letters of a run's title and its duration together
LETTERS = 12, 15  # average letters that fit on a card, in the name and in the line below

_WIDTHS = dict.fromkeys("iIjlt.,:;|!'()[]- ", 0.6) | dict.fromkeys("mwMW@%", 1.5)  # in average letters


@dataclass(frozen=True)
class Artifact:
    """An artifact's labels. If its maker is not on record, `kind` is None and `name` the start of the digest."""

    digest: str
    kind: str | None
    name: str  # base, chat, …, or the title of the stage that made it
    detail: str  # the main fact
    family: str = "other"  # data, tokenizer, model, finding or page, which has its own shape


@dataclass
class Box:
    """An artifact with its maker; a run without a result; a fold with a number of boxes; or stages to come."""

    key: str  # digest; id of a run that did not make its output first; or the node that the fold belongs to
    artifact: str | None = None
    runs: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)  # keys
    others: list[str] = field(default_factory=list)  # keys of the run's inputs that its artifact was not made from
    folded: int = 0
    title: str = ""
    to_come: int = 0  # stages that have not started


@dataclass(frozen=True)
class Marks:
    """The highlighted nodes: the chosen one, and those on a path; all others are dimmed."""

    chosen: str | None = None
    way: Collection[str] = ()

    def of(self, node: str) -> str:
        chosen = " chosen" if node == self.chosen else ""
        return chosen if not self.way else chosen + (" on" if node in self.way else " off")


def draw(
    boxes: Sequence[Box],
    labels: Mapping[str, Artifact],
    runs: "Mapping[str, Run]",
    link: Callable[[str], str],
    marks: Marks,
    alt: str,
) -> Markup:
    """Draw the graph. `link(node)` is the target of a click."""
    at = {box.key: number for number, box in enumerate(boxes)}
    arrows = [(at[parent], number) for number, box in enumerate(boxes) for parent in box.parents if parent in at]
    others = [(at[other], number) for number, box in enumerate(boxes) for other in box.others if other in at]
    layout = layered([_height(box) for box in boxes], arrows + others, DOWN)
    left = [MARGIN + layer * (WIDTH + ACROSS) for layer in layout.layer]
    top = [MARGIN + y - _height(box) / 2 for box, y in zip(boxes, layout.y, strict=True)]

    def arrow(start: int, end: int, style: str) -> Markup:
        out, into = top[start] + _height(boxes[start]) - CARD / 2, top[end] + _entry(boxes[end])
        points = [(left[start] + WIDTH, out)]
        for passed, y in enumerate(layout.ways.get((start, end), ()), layout.layer[start] + 1):
            x = MARGIN + passed * (WIDTH + ACROSS)
            points += [(x, MARGIN + y), (x + WIDTH, MARGIN + y)]
        style += _way(boxes[start], boxes[end], marks)
        return _curve([*points, (left[end] - 3, into)], style)

    faint = {*layout.weak, *others}
    parts = [arrow(start, end, "weak") for start, end in faint]
    parts += [arrow(start, end, "edge") for start, end in layout.ways if (start, end) not in faint]
    for box, x, y in zip(boxes, left, top, strict=True):
        parts.append(_box(box, x, y, labels, runs, link, marks))
    wide = 2 * MARGIN + max(left, default=0.0) + WIDTH - MARGIN
    high = 2 * MARGIN + layout.height
    head = Markup(
        '<svg class="graph" viewBox="0 0 {w:.0f} {h:.0f}" width="{w:.0f}" height="{h:.0f}" role="group" '
        'aria-label="{alt}">'
    ).format(w=wide, h=high, alt=alt)
    return head + Markup("").join(parts) + Markup("</svg>")


def _height(box: Box) -> float:
    return len(box.runs) * (PILL + SEAM) + CARD


def _entry(box: Box) -> float:
    """Return where arrows enter a box: at its first run, if any, else at the card."""
    return PILL / 2 if box.runs else CARD / 2


def _way(start: Box, end: Box, marks: Marks) -> str:
    if not marks.way:
        return ""
    return " on" if start.key in marks.way and any(run in marks.way for run in end.runs) else " off"


def _curve(points: Sequence[tuple[float, float]], style: str) -> Markup:
    """Draw an arrow through the points."""
    commands = [f"M{points[0][0]:.0f} {points[0][1]:.1f}"]
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (x1 + x2) / 2
        commands.append(
            f"L{x2:.0f} {y2:.1f}"
            if abs(y1 - y2) < 0.5
            else f"C{middle:.0f} {y1:.1f} {middle:.0f} {y2:.1f} {x2:.0f} {y2:.1f}"
        )
    return Markup('<path class="{}" d="{}m-6 -4l6 4l-6 4"/>').format(style, "".join(commands))


def _box(
    box: Box,
    x: float,
    y: float,
    labels: Mapping[str, Artifact],
    runs: "Mapping[str, Run]",
    link: Callable[[str], str],
    marks: Marks,
) -> Markup:
    parts = []
    for number, run in enumerate(box.runs):
        parts.append(_pill(runs[run], x, y + number * (PILL + SEAM), link(run), marks.of(run)))
    below = y + len(box.runs) * (PILL + SEAM)
    if box.to_come:
        name = _text("name", x + 16, below + 19, f"{box.to_come} to come")
        parts.append(_ghost(x, below, "", name + _text("detail", x + 16, below + 36, _short(box.title, LETTERS[1]))))
    elif box.folded:
        parts.append(_fold(box, x, below, link(box.key), " off" if marks.way else ""))
    elif box.artifact is None:
        state = "running" if runs[box.runs[0]].live else "no result"
        parts.append(_ghost(x, below, marks.of(box.runs[0]), _text("detail", x + 14, below + 26, state)))
    else:
        parts.append(_card(labels[box.artifact], x, below, link(box.artifact), marks.of(box.artifact)))
    return Markup("").join(parts)


def _card(label: Artifact, x: float, y: float, href: str, mark: str) -> Markup:
    alt = f"{label.name}, {(label.kind or 'artifact').replace('_', ' ')}, {label.detail}"
    lower = 2 if label.family == "data" else 0  # below a cylinder's lid
    parts = [
        Markup('<path d="{}"/>').format(_outline(label.family, x, y)),
        _text("name", x + 16, y + 19 + 2 * lower, _short(label.name, LETTERS[0])),
        _text("detail", x + 16, y + 36 + lower, _short(label.detail, LETTERS[1])),
    ]
    return _link(f"artifact {label.family}{mark}", href, label.digest, alt, f"{alt} {label.digest[:12]}", parts)


def _pill(run: "Run", x: float, y: float, href: str, mark: str) -> Markup:
    state = "cached" if run.cached else run.status.lower()
    took = "cached" if run.cached else state if run.took is None else brief(run.took)
    parts = [
        _rect(x, y, high=PILL, corner=PILL / 2),
        Markup('<circle cx="{}" cy="{:.1f}" r="3.5"/>').format(x + 12, y + PILL / 2),
        _text("title", x + 21, y + 15.5, _short(run.title, PILL_LETTERS - len(took))),
        _text("took", x + WIDTH - 10, y + 15.5, took),
    ]
    return _link(f"run {state}{mark}", href, run.id, f"run {run.title}, {state}", f"{run.title}: {state}", parts)


def _fold(box: Box, x: float, y: float, href: str, mark: str) -> Markup:
    alt = f"show {box.folded} more: {box.title}"
    parts = [
        _rect(x + 5, y - 4, wide=WIDTH - 10),
        _rect(x, y),
        _text("name", x + 16, y + 19, f"+ {box.folded:,} more"),
        _text("detail", x + 16, y + 34, _short(box.title, LETTERS[1])),
    ]
    return _link(f"fold{mark}", href, box.key, alt, alt, parts)


def _ghost(x: float, y: float, mark: str, texts: Markup) -> Markup:
    return Markup('<g class="ghost{}">{}{}</g>').format(mark, _rect(x, y), texts)


def _link(style: str, href: str, node: str, alt: str, title: str, parts: Sequence[Markup]) -> Markup:
    """Draw a node that can be opened."""
    head = Markup('<a class="{}" href="{}" data-node="{}" aria-label="{}"><title>{}</title>')
    return head.format(style, href, node, alt, title) + Markup("").join(parts) + Markup("</a>")


def _rect(x: float, y: float, wide: float = WIDTH, high: float = CARD, corner: float = 6) -> Markup:
    return Markup('<rect x="{}" y="{:.1f}" width="{}" height="{}" rx="{}"/>').format(x, y, wide, high, corner)


def _outline(family: str, x: float, y: float) -> str:
    """Outline a cylinder for data, a slanted card for a tokenizer, a hexagon for a model, a sheet for a finding."""
    w, h = WIDTH, CARD
    if family == "data":
        return f"M{x} {y + 5:.1f}c0 -6 {w} -6 {w} 0v{h - 10}c0 6 -{w} 6 -{w} 0zM{x} {y + 5:.1f}c0 6 {w} 6 {w} 0"
    if family == "tokenizer":
        return f"M{x + 9} {y:.1f}h{w - 9}l-9 {h}h-{w - 9}z"
    if family == "model":
        return f"M{x + 9} {y:.1f}h{w - 18}l9 {h / 2}l-9 {h / 2}h-{w - 18}l-9 -{h / 2}z"
    if family in ("finding", "page"):
        return f"M{x} {y:.1f}h{w - 12}l12 12v{h - 12}h-{w}zM{x + w - 12} {y:.1f}v12h12"
    return f"M{x} {y:.1f}h{w}v{h}h-{w}z"


def _text(style: str, x: float, y: float, text: str) -> Markup:
    return Markup('<text class="{}" x="{:.0f}" y="{:.1f}">{}</text>').format(style, x, y, text)


def _short(text: str, letters: int) -> str:
    """Cut the text to the width of this many average letters."""
    room = letters - 1.0
    for end, letter in enumerate(text):
        room -= _WIDTHS.get(letter, 1.15 if letter.isupper() else 1.8 if ord(letter) > 0x2E80 else 1.0)
        if room < 0 and end < len(text) - 1:
            return text[:end] + "…"
    return text

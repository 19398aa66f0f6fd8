"""Whether a candidate takes the champion's place: the words, and every metric of both."""

import json
from typing import Any

from infra.text import number, points, share, words
from tasks.report.blocks import Block, Cell, Mark, Table, Text, Tone
from tasks.report.source import Source

TONES: dict[str, Tone | None] = {"promoted": "good", "kept": None, "rejected": "bad"}
BITS = "bits_per_byte"


def decision(source: Source) -> list[Block]:
    told = json.loads((source.directory / "decision.json").read_text())
    measures = [each for each in told["measures"] if each["items"]]
    confidence = f"{100 * told['spec']['confidence']:g} %"
    caption = (
        f"Candidate and champion, item by item; differences are positive where the candidate is better, bounds are "
        f"one-sided with {confidence} confidence"
    )
    columns = ["metric", "items", "candidate", "champion", "difference", "at least", "at most", "asked"]
    table = Table(caption, columns, [_row(each) for each in measures], "lrrrrrrl")
    return [Text(told["words"], TONES[told["outcome"]]), table]


def _row(measure: dict[str, Any]) -> list[Cell]:
    which, _, name = measure["name"].partition(".")
    changes = [_change(name, measure[key]) for key in ("difference", "low", "high")]
    return [
        f"{words(name)}, {which}",
        number(measure["items"]),
        _value(name, measure["candidate"]),
        _value(name, measure["champion"]),
        *changes,
        _asked(name, measure),
    ]


def _asked(name: str, measure: dict[str, Any]) -> Cell:
    asked = []
    if measure["margin"] is not None:
        asked.append(f"surely more than {_change(name, measure['margin'])}")
    if measure["allowed"] is not None:
        asked.append(f"no less than {_change(name, -measure['allowed'])}")
    if measure["met"] is None:
        return "–"
    return Mark(f"{'✓' if measure['met'] else '✗'} {', '.join(asked)}", "good" if measure["met"] else "bad")


def _value(name: str, value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" if name == BITS else share(value)


def _change(name: str, value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.2f} %" if name == BITS else points(value)

"""The pages of a promotion and of its decision, with the reason and every metric of candidate and champion."""

import json
from typing import Any

from baton.infra.text import change, number
from baton.infra.text import measure as shown
from baton.tasks.evaluate.results import BITS, SETS
from baton.tasks.pages.blocks import Block, Cell, Mark, Table, Text, Tone
from baton.tasks.pages.source import Source

TONES: dict[str, Tone | None] = {"promoted": "good", "kept": None, "rejected": "bad"}
RELATIVE = [f"{which}.{BITS}" for which in SETS]  # their differences are relative to the champion's value


def decision(source: Source) -> list[Block]:
    content = json.loads((source.directory / "decision.json").read_text())
    measures = [measure for measure in content["measures"] if measure["items"]]
    confidence = f"{100 * content['spec']['confidence']:g} %"
    models = [
        f"{label} {content[role][:12]}"
        for role, label in zip(("candidate", "champion"), content["labels"], strict=False)
    ]
    caption = (
        f"The candidate, {' and the champion, '.join(models)}, item by item on what both were measured on: differences "
        f"are positive where the candidate is better, bounds are one-sided with {confidence} confidence"
    )
    columns = ["metric", "items", "candidate", "champion", "difference", "at least", "at most", "required"]
    table = Table(caption, columns, [_row(measure) for measure in measures], "lrrrrrrl")
    return [Text(content["words"], TONES[content["outcome"]]), table]


def _row(measure: dict[str, Any]) -> list[Cell]:
    name = measure["name"]
    which, _, bits = name.partition(".")
    changes = [_change(measure, measure[key]) for key in ("difference", "low", "high")]
    return [
        f"{bits}, {which}" if name in RELATIVE else name,
        number(measure["items"]),
        _value(measure, measure["candidate"]),
        _value(measure, measure["champion"]),
        *changes,
        _required(measure),
    ]


def _required(measure: dict[str, Any]) -> Cell:
    """Return the rule's requirements for a metric, or a dash if it has none."""
    required = []
    if measure["margin"] is not None:
        required.append(f"surely more than {_change(measure, measure['margin'])}")
    if measure["allowed"] is not None:
        required.append(f"no less than {_change(measure, -measure['allowed'])}")
    if measure["met"] is None:
        return "–"
    return Mark(f"{'✓' if measure['met'] else '✗'} {', '.join(required)}", "good" if measure["met"] else "bad")


def _value(measure: dict[str, Any], value: float | None) -> str:
    return "–" if value is None else shown(value, measure["unit"])


def _change(measure: dict[str, Any], value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.2f} %" if measure["name"] in RELATIVE else change(value, measure["unit"])


def promotion(source: Source) -> list[Block]:
    facts = source.manifest.facts
    aliases = f"champion is version {facts['champion'] or '–'}, previous {facts['previous'] or '–'}"
    return [Text(f"{facts['registry_name']}, version {facts['registry_version']}: {facts['outcome']}; {aliases}.")]

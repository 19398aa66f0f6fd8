"""Show all completions of the same prompts by each model beside the reference completions."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from baton.infra.evaluated import SAMPLES, as_text, common_samples
from baton.infra.text import measure
from baton.tasks.evaluate.results import Results
from baton.tasks.pages.blocks import Answer, Block, Mark, Sample

EACH = 4  # different completions of a prompt by one model that are shown at once
MOST = 32  # and those that are in the page at all


def samples(results: list[Results], shown: int = SAMPLES, each: int = EACH) -> list[Block]:
    """Return samples for prompts that every model completed, evenly spaced through the set. Equal completions by one
    model are one, with their number; a model's different ones after the first `each` are folded."""
    labels = [result.label for result in results]
    common = common_samples([result.completions for result in results], shown)
    return [_sample(dict(zip(labels, rows, strict=True)), each) for rows in common]


def _sample(rows: dict[str, list[Mapping[str, Any]]], each: int) -> Sample:
    first = next(iter(rows.values()))[0]
    shown = [] if first["reference"] is None else [Answer("reference", as_text(first["reference"]), None)]
    more: list[Answer] = []
    left_out = 0
    for label, completions in rows.items():
        answers = _answers(label, completions)
        shown += answers[:each]
        more += answers[each:MOST]
        left_out += len(answers[MOST:])
    return Sample(str(first["evaluator"]), as_text(first["prompt"]), shown, more, left_out)


def _answers(label: str, completions: Iterable[Mapping[str, Any]]) -> list[Answer]:
    """Return a model's different completions, in the order in which they were sampled."""
    numbers = Counter((as_text(row["completion"]), _remark(row)) for row in completions)
    total = numbers.total()
    return [
        Answer(label, text, Mark(", ".join(filter(None, [_of(number, total), remark])), "quiet"))
        for (text, remark), number in numbers.items()
    ]


def _of(number: int, total: int) -> str:
    return f"{number} of {total} samples" if total > 1 else ""


def _remark(row: Mapping[str, Any]) -> str:
    """Return the rewards, and whether the completion was truncated."""
    rewards = [f"{name} {measure(value, '')}" for name, value in row["rewards"].items() if value is not None]
    return ", ".join([*rewards, *([] if row["ended"] else ["cut off"])])

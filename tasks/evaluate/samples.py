"""Show the models' completions of the same prompts beside the reference completions."""

from collections.abc import Mapping
from typing import Any

from baton.infra.evaluated import SAMPLES, as_text, common_samples
from baton.infra.text import measure
from baton.tasks.evaluate.results import Results
from baton.tasks.pages.blocks import Block, Mark, Sample


def samples(results: list[Results], shown: int = SAMPLES) -> list[Block]:
    """Return samples for prompts that every model completed, evenly spaced through the set."""
    labels = [result.label for result in results]
    common = common_samples([result.completions for result in results], shown)
    return [_sample(dict(zip(labels, rows, strict=True))) for rows in common]


def _sample(rows: dict[str, Mapping[str, Any]]) -> Sample:
    first = next(iter(rows.values()))
    answers: list[tuple[str, str, Mark | None]] = []
    if first["reference"] is not None:
        answers.append(("reference", as_text(first["reference"]), None))
    answers += [(label, as_text(row["completion"]), _remark(row)) for label, row in rows.items()]
    return Sample(str(first["evaluator"]), as_text(first["prompt"]), answers)


def _remark(row: Mapping[str, Any]) -> Mark:
    """Return the rewards, and whether the completion was truncated."""
    rewards = [f"{name} {measure(value, '')}" for name, value in row["rewards"].items() if value is not None]
    return Mark(", ".join([*rewards, *([] if row["ended"] else ["cut off"])]), "quiet")

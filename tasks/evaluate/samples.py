"""The models' completions of the same prompts, beside the reference completions."""

from typing import Any

from infra.text import measure
from tasks.evaluate.results import Results
from tasks.pages.blocks import Block, Mark, Sample

SHOWN = 8

Key = tuple[str, str]  # evaluator, id


def samples(results: list[Results], shown: int = SHOWN) -> list[Block]:
    """Prompts that every model completed, evenly spaced through the set."""
    answers = [_by_prompt(result) for result in results]
    common = [key for key in (answers[0] if answers else {}) if all(key in rows for rows in answers)]
    if not common:
        return []
    stride = max(1, len(common) // shown)
    return [
        _sample(key[0], {result.label: rows[key] for result, rows in zip(results, answers, strict=True)})
        for key in common[::stride][:shown]
    ]


def _sample(evaluator: str, rows: dict[str, dict[str, Any]]) -> Sample:
    first = next(iter(rows.values()))
    answers: list[tuple[str, str, Mark | None]] = []
    if first["reference"] is not None:
        answers.append(("reference", as_text(first["reference"]), None))
    answers += [(label, as_text(row["completion"]), _remark(row)) for label, row in rows.items()]
    return Sample(evaluator, as_text(first["prompt"]), answers)


def as_text(value: Any) -> str:
    """A text, or a conversation as one line per turn."""
    if isinstance(value, str):
        return value
    turns = [(turn["role"], str(turn.get("content") or turn.get("tool_calls") or "")) for turn in value]
    return turns[0][1] if len(turns) == 1 else "\n".join(f"{role}: {text}" for role, text in turns)


def _remark(row: dict[str, Any]) -> Mark:
    """The rewards, and whether the completion was truncated."""
    rewards = [f"{name} {measure(value, '')}" for name, value in row["rewards"].items() if value is not None]
    return Mark(", ".join([*rewards, *([] if row["ended"] else ["cut off"])]), "quiet")


def _by_prompt(result: Results) -> dict[Key, dict[str, Any]]:
    """The first completion of each prompt, in file order."""
    first: dict[Key, dict[str, Any]] = {}
    for row in result.completions:
        first.setdefault((str(row["evaluator"]), str(row["id"])), row)
    return first

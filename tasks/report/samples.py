"""What the models wrote for the same prompts, beside what really came next."""

from typing import Any

from tasks.report.blocks import Block, Mark, Sample
from tasks.report.source import Source, read_lines

SHOWN = 8
CHECKS = ("parses", "not_trivial", "defined", "uses_context")


def samples(evaluations: list[Source], shown: int = SHOWN) -> list[Block]:
    """Prompts that every model answered, spread evenly over all of them: not chosen by anyone."""
    answers = [_by_prompt(each) for each in evaluations]
    common = [prompt for prompt in (answers[0] if answers else {}) if all(prompt in each for each in answers)]
    if not common:
        return []
    stride = max(1, len(common) // shown)
    return [
        _sample(prompt, {each.label: rows[prompt] for each, rows in zip(evaluations, answers, strict=True)})
        for prompt in common[::stride][:shown]
    ]


def _sample(prompt: str, rows: dict[str, dict[str, Any]]) -> Sample:
    first = next(iter(rows.values()))
    answers: list[tuple[str, str, Mark | None]] = [("real statement", str(first["reference"]), None)]
    answers += [(label, str(row.get("statement") or row["completion"]), _remark(row)) for label, row in rows.items()]
    return Sample(str(first.get("source", "held-out prompt")), prompt, answers)


def _remark(row: dict[str, Any]) -> Mark:
    """What the checks found; every check after a failed parse is moot."""
    failed = [name for name in CHECKS if not row[name]]
    if not failed:
        return Mark("✓ passes", "good")
    if "parses" in failed:
        return Mark("✗ does not parse", "bad")
    said = {"not_trivial": "trivial", "defined": "undefined name", "uses_context": "ignores its context"}
    return Mark("✗ " + ", ".join(said[name] for name in failed), "bad")


def _by_prompt(source: Source) -> dict[str, dict[str, Any]]:
    """In file order."""
    return {str(row["prompt"]): row for row in read_lines(source.directory / "completions.jsonl")}

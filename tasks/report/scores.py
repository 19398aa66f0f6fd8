"""The models' scores side by side."""

import json
from typing import Any

from infra.charts import bars
from infra.text import number, share, words
from tasks.report.blocks import Cell, Grid, Mark, Table
from tasks.report.source import Source

SHARES = ("all_checks", "distinct", "parses", "not_trivial", "defined", "uses_context")  # of completions
REAL = "real statements"  # how they fare under the same checks: the ceiling


def score_table(evaluations: list[Source]) -> Table:
    """A row a measure, a column a model, and what the real statements reach."""
    real = real_scores(evaluations)
    rows: list[list[Cell]] = [
        *[_row(words(name), name, evaluations, best=max) for name in SHARES],
        _row("bits per byte", "bits_per_byte", evaluations, best=min),
        ["prompts", *[number(each.manifest.facts["prompts"]) for each in evaluations]],
    ]
    if real:
        ceiling = {words(name): share(real[name]) for name in SHARES if name in real}
        for row in rows:
            row.append(Mark(ceiling.get(str(row[0]), "–"), "quiet"))
    columns = ["measure", *[each.label for each in evaluations], *(["real"] if real else [])]
    caption = "Next statement on held-out prompts: shares of completions, and bits per byte (less is better)"
    return Table(caption + ("; real: the statements that came next" if real else ""), columns, rows)


def score_bars(evaluations: list[Source]) -> list[Grid]:
    """A panel a measure, a bar a model."""
    real = real_scores(evaluations)
    figures = [
        bars(
            words(name).capitalize(),
            [(each.label, float(each.manifest.facts[name])) for each in evaluations],
            lambda value: f"{100 * value:.0f} %",
            top=1.0,
            ceiling=(REAL, real[name]) if name in real else None,
        )
        for name in SHARES
    ]
    bits = [(each.label, float(each.manifest.facts["bits_per_byte"])) for each in evaluations]
    figures.insert(2, bars("Bits per byte (less is better)", bits, lambda value: f"{value:.2f}"))
    return [Grid(figures)]


def real_scores(evaluations: list[Source]) -> dict[str, float]:
    """What the real statements reach under the same checks; empty when nobody measured it."""
    for each in evaluations:
        path = each.directory / "report.json"
        report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if found := report.get("ceiling"):
            return {name: float(found[name]) for name in SHARES if name in found}
    return {}


def _row(title: str, name: str, evaluations: list[Source], *, best: Any) -> list[Cell]:
    values = [float(each.manifest.facts[name]) for each in evaluations]
    texts = [f"{value:.3f}" if name == "bits_per_byte" else share(value) for value in values]
    winner = best(values) if len(values) > 1 else None
    marked = [Mark(text, "best") if value == winner else text for text, value in zip(texts, values, strict=True)]
    return [title, *marked]

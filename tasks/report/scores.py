"""The models' scores side by side."""

import json
from typing import Any

from infra.charts import bars
from infra.text import number, share, size, words
from tasks.report.blocks import Cell, Grid, Mark, Table
from tasks.report.source import Source

SHARES = ("all_checks", "distinct", "parses", "not_trivial", "defined", "uses_context")  # of completions
SET_SHARES = ("all_checks", "distinct", "parses")  # as many as a terminal has room for
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


def set_table(evaluations: list[Source]) -> list[Table]:
    """A row for each model and held-out set, where a model was asked about several."""
    rows: list[list[Cell]] = [
        [
            each.label,
            name,
            number(scores["documents"]),
            size(scores["bytes"]),
            f"{scores['bits_per_byte']:.3f}" if "bits_per_byte" in scores else "–",
            number(scores["prompts"]),
            *[share(scores[measure]) if measure in scores else "–" for measure in SET_SHARES],
        ]
        for each in evaluations
        for name, scores in _report(each).get("sets", {}).items()
    ]
    if len(rows) <= len(evaluations):
        return []
    columns = ["model", "set", "documents", "text", "bits per byte", "prompts", *map(words, SET_SHARES)]
    caption = "Each held-out set by itself: the first is the one above; a set may have less than was asked for"
    return [Table(caption, columns, rows, "ll" + "r" * (len(columns) - 2))]


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
        if found := _report(each).get("ceiling"):
            return {name: float(found[name]) for name in SHARES if name in found}
    return {}


def _report(evaluation: Source) -> dict[str, Any]:
    path = evaluation.directory / "report.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _row(title: str, name: str, evaluations: list[Source], *, best: Any) -> list[Cell]:
    values = [float(each.manifest.facts[name]) for each in evaluations]
    texts = [f"{value:.3f}" if name == "bits_per_byte" else share(value) for value in values]
    winner = best(values) if len(values) > 1 else None
    marked = [Mark(text, "best") if value == winner else text for text, value in zip(texts, values, strict=True)]
    return [title, *marked]

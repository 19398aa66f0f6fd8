"""The models' metrics side by side."""

import math
from dataclasses import replace
from functools import partial

from infra.charts import bars
from infra.text import measure, number, size, words
from tasks.evaluate.results import Results, read_results
from tasks.metric import Metric
from tasks.report.blocks import Block, Cell, Grid, Mark, Table, Text
from tasks.report.source import Source
from tasks.seeds import Spread, by_model

REFERENCE = "reference"  # the rows' own completions under the same rewards: the ceiling
MOST_BARS = 12


def results_of(evaluations: list[Source]) -> list[Results]:
    """Raises ArtifactError."""
    return [read_results(each.directory) for each in evaluations]


def metrics_of(results: list[Results]) -> dict[str, Metric]:
    """Every metric that some model has, by name, in the order of the evaluators; the value is one of the models'."""
    return {name: metric for each in reversed(results) for name, metric in each.metrics.items()}


def score_table(evaluations: list[Source]) -> Table:
    """A row a metric, a column a model, and the ceiling: the rewards of the rows' own completions. A model of several
    seeds has the mean over them and its spread."""
    results = results_of(evaluations)
    models, ceiling = by_model(results, lambda each: each.label), ceiling_of(results)
    rows: list[list[Cell]] = []
    for name, metric in metrics_of(results).items():
        rows.append([words(name), *_values(name, metric, list(models.values()))])
        if ceiling:
            rows[-1].append(Mark(measure(ceiling[name], metric.unit) if name in ceiling else "–", "quiet"))
    heads = [f"{label}, {len(runs)} seeds" if len(runs) > 1 else label for label, runs in models.items()]
    columns = ["metric", *heads, *([REFERENCE] if ceiling else [])]
    less = [words(name) for name, metric in metrics_of(results).items() if not metric.higher_is_better]
    caption = "Metrics of each model" + (f" (less is better: {', '.join(less)})" if less else "")
    return Table(caption + ("; reference: the rows' own completions" if ceiling else ""), columns, rows)


def seed_table(evaluations: list[Source]) -> list[Block]:
    """Of models that were made with several seeds: what the scores above are, and a row a metric of each model with its
    single runs, a column a seed."""
    results = results_of(evaluations)
    models = {label: runs for label, runs in by_model(results, lambda each: each.label).items() if len(runs) > 1}
    if not models:
        return []
    seeds = max(map(len, models.values()))
    rows: list[list[Cell]] = []
    for name, metric in metrics_of(results).items():
        for label, runs in models.items():
            shown = [measure(run.metrics[name].value, metric.unit) for run in runs if name in run.metrics]
            rows.append([words(name), label, *shown, *["–"] * (seeds - len(shown))])
    columns = ["metric", "model", "first seed", *(f"seed + {number}" for number in range(1, seeds))]
    said = "Of several seeds: the mean ± the sample standard deviation (n − 1). The single runs, a model each:"
    return [Text(said, "quiet"), Table("Single runs", columns, rows, "ll" + "r" * seeds)]


def set_table(evaluations: list[Source]) -> list[Table]:
    """A row for each model and corpus, where a model was measured on several."""
    results = results_of(evaluations)
    rows: list[list[Cell]] = [
        [
            each.label,
            name,
            number(scores["documents"]),
            size(scores["bytes"]),
            f"{scores['bits_per_byte']:.3f}" if "bits_per_byte" in scores else "–",
        ]
        for each in results
        for name, scores in each.report.get("sets", {}).items()
    ]
    if len(rows) <= len(evaluations):
        return []
    columns = ["model", "set", "documents", "text", "bits per byte"]
    caption = "Each held-out set by itself: the first is the one above; a set may have less text than `held_out_bytes`"
    return [Table(caption, columns, rows, "ll" + "r" * (len(columns) - 2))]


def score_bars(evaluations: list[Source]) -> list[Grid]:
    """A panel a metric, a bar a model."""
    results = results_of(evaluations)
    ceiling = ceiling_of(results)
    figures = []
    for name, metric in list(metrics_of(results).items()):
        values = [(each.label, each.metrics[name].value) for each in results if name in each.metrics]
        if not all(math.isfinite(value) and value >= 0 for _, value in values):
            continue  # a bar stands on zero
        figures.append(
            bars(
                words(name) + ("" if metric.higher_is_better else " (less is better)"),
                values,
                partial(measure, unit=metric.unit),
                top=1.0 if metric.unit == "share" else None,
                ceiling=(REFERENCE, ceiling[name]) if name in ceiling else None,
            )
        )
    return [Grid(figures[:MOST_BARS])] if figures else []


def ceiling_of(results: list[Results]) -> dict[str, float]:
    """The rewards of the rows' own completions; empty when they were not measured."""
    return next((each.report["ceiling"] for each in results if each.report.get("ceiling")), {})


def _values(name: str, metric: Metric, models: list[list[Results]]) -> list[Cell]:
    """A metric of each model, the best one marked."""
    known = [[run.metrics[name].value for run in runs if name in run.metrics] for runs in models]
    found = [Spread.of(values) if values else None for values in known]
    means = [replace(metric, value=each.mean).worth() for each in found if each]
    cells: list[Cell] = []
    for each in found:
        text = each.shown(metric.unit) if each else "–"
        best = each and len(means) > 1 and replace(metric, value=each.mean).worth() == max(means)
        cells.append(Mark(text, "best") if best else text)
    return cells

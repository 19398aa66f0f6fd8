"""Show the models' metrics side by side."""

import math
from dataclasses import replace
from functools import partial

from baton.infra.chance import Finding
from baton.infra.drawing.charts import bars
from baton.infra.evaluated import Measured, difference
from baton.infra.text import measure, number, size
from baton.tasks.core.metric import Metric
from baton.tasks.core.seeds import Spread, by_model
from baton.tasks.evaluate.results import Results
from baton.tasks.pages.blocks import Block, Cell, Grid, Mark, Table, Text
from baton.tasks.rewards.thinking import in_words

REFERENCE = "reference"  # the rewards of the reference completions: the ceiling
ON_TRAIN = ", training rows"
MOST_BARS = 12


def score_table(results: list[Results]) -> Table:
    """Return a table with a row per metric, below it one of its value on training rows if it was measured there, a
    column per model, and a column for the ceiling, the rewards of the reference completions. With several seeds, cells
    have mean and standard deviation."""
    models, ceiling = by_model(results, lambda result: result.label), _ceiling(results)
    rows: list[list[Cell]] = []
    for name, metric in _metrics(results).items():
        rows.append([name, *_values(name, metric, list(models.values()))])
        if ceiling:
            rows[-1].append(Mark(measure(ceiling[name], metric.unit) if name in ceiling else "–", "quiet"))
        if any(name in result.train for result in results):
            of_train = [_spread([run.train[name] for run in runs if name in run.train]) for runs in models.values()]
            cells = [Mark(spread.shown(metric.unit) if spread else "–", "quiet") for spread in of_train]
            rows.append([f"{name}{ON_TRAIN}", *cells, *([Mark("–", "quiet")] if ceiling else [])])
    heads = [f"{label}, {len(runs)} seeds" if len(runs) > 1 else label for label, runs in models.items()]
    columns = ["metric", *heads, *([REFERENCE] if ceiling else [])]
    lower = [name for name, metric in _metrics(results).items() if metric.higher_is_better is False]
    caption = "Metrics of each model" + (f" (lower is better: {', '.join(lower)})" if lower else "")
    return Table(caption + ("; reference: the rows' own completions" if ceiling else ""), columns, rows)


def measured_on(results: list[Results]) -> list[Text]:
    """Describe the data that the metrics were measured on."""
    texts = []
    labels = _by_data(results)
    for measured, models in labels.items():
        on = "; ".join(f"{name}: {what}" for name, what in measured)
        who = "Measured" if len(labels) == 1 else f"{', '.join(models)}: measured"
        texts += [Text(f"{who} on {on}.", "quiet")] if on else []
    return [*texts, *_thoughts(results)]


def overfits(results: list[Results]) -> list[Text]:
    """Return a sentence for each model whose rewards are better on training rows than on held-out ones by more than
    chance explains."""
    texts = []
    for result in results:
        gaps = [
            f"{name} {measure(metric.value, metric.unit)} and {measure(held_out.value, metric.unit)}"
            for name, metric in result.train.items()
            if (held_out := result.metrics.get(name)) and _gap(held_out, metric) == "better"
        ]
        if gaps:
            texts.append(
                Text(
                    f"{result.label} is better on training rows than on held-out rows, by more than chance explains "
                    f"({'; '.join(gaps)}): it is overfitted to them, unless the model from which it started has the "
                    "same gap. Fewer epochs, more rows or a lower learning rate make the gap smaller."
                )
            )
    return texts


def _gap(held_out: Metric, train: Metric) -> Finding:
    one, other = (Measured(metric.value, metric.standard_error, metric.count) for metric in (held_out, train))
    return difference(one, other).finding(train.higher_is_better)


def different_data(results: list[Results]) -> list[str]:
    """Return a sentence if the models were not measured on the same data; else nothing."""
    models = [", ".join(labels) for measured, labels in _by_data(results).items() if measured]
    if len(models) < 2:
        return []
    return [f"The models cannot be compared, since they were measured on different data: {'; '.join(models)}."]


def _by_data(results: list[Results]) -> dict[tuple[tuple[str, str], ...], list[str]]:
    """Return the labels of the models by the data that they were measured on."""
    labels: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for result in results:
        labels.setdefault(tuple(result.measured.items()), []).append(result.label)
    return labels


def _thoughts(results: list[Results]) -> list[Text]:
    """Describe the thoughts that were removed from the scored completions."""
    left_out: dict[str, list[str]] = {}
    for result in results:
        for name, counts in result.report.get("questions", {}).items():
            if thoughts := counts.get("thoughts"):
                left_out.setdefault(name, []).append(f"{result.label}: {in_words(thoughts)}")
    return [Text(f"{name}: {'. '.join(texts)}.", "quiet") for name, texts in left_out.items()]


def seed_table(results: list[Results]) -> list[Block]:
    """Return a table of models trained with several seeds, with a row per metric and model and a column per seed."""
    models = {label: runs for label, runs in by_model(results, lambda result: result.label).items() if len(runs) > 1}
    if not models:
        return []
    seeds = max(map(len, models.values()))
    rows: list[list[Cell]] = []
    for name, metric in _metrics(results).items():
        for label, runs in models.items():
            known = [run.metrics.get(name) for run in runs] + [None] * (seeds - len(runs))
            rows.append([name, label, *[measure(run.value, metric.unit) if run else "–" for run in known]])
    columns = ["metric", "model", "first seed", *(f"seed + {number}" for number in range(1, seeds))]
    note = "With several seeds: the mean ± the sample standard deviation (n − 1). The individual runs:"
    return [Text(note, "quiet"), Table("Individual runs", columns, rows, "ll" + "r" * seeds)]


def set_table(results: list[Results]) -> list[Table]:
    """Return a table with a row per model and corpus, if there are several corpora."""
    rows: list[list[Cell]] = [
        [
            result.label,
            name,
            number(scores["documents"]),
            size(scores["bytes"]),
            f"{scores['bits_per_byte']:.3f}" if "bits_per_byte" in scores else "–",
        ]
        for result in results
        for name, scores in result.report.get("sets", {}).items()
    ]
    if len(rows) <= len(results):
        return []
    columns = ["model", "set", "documents", "text", "bits per byte"]
    caption = "Each held-out set: the first is the one above; a set can have less text than `held_out_bytes`"
    return [Table(caption, columns, rows, "ll" + "r" * (len(columns) - 2))]


def score_bars(results: list[Results]) -> list[Grid]:
    """Return a chart per metric with a bar per model."""
    ceiling = _ceiling(results)
    figures = []
    for name, metric in _metrics(results).items():
        values = [(result.label, result.metrics[name].value) for result in results if name in result.metrics]
        if not all(math.isfinite(value) and value >= 0 for _, value in values):
            continue  # bars start at zero
        if len(values) == 1 and name not in ceiling:
            continue  # there is nothing to compare
        figures.append(
            bars(
                name + " (lower is better)" * (metric.higher_is_better is False),
                values,
                partial(measure, unit=metric.unit),
                top=1.0 if metric.unit == "share" else None,
                ceiling=(REFERENCE, ceiling[name]) if name in ceiling else None,
            )
        )
    return [Grid(figures[:MOST_BARS])] if figures else []


def _metrics(results: list[Results]) -> dict[str, Metric]:
    """Return every metric of any model by name, in the order of the evaluators, with the values of one of the
    models."""
    return {name: metric for result in reversed(results) for name, metric in result.metrics.items()}


def _ceiling(results: list[Results]) -> dict[str, float]:
    """Return the rewards of the reference completions; empty if they were not measured."""
    return next((result.report["ceiling"] for result in results if result.report.get("ceiling")), {})


def _values(name: str, metric: Metric, models: list[list[Results]]) -> list[Cell]:
    """Return a metric's value for each model; the best is marked if the metric's direction is known."""
    spreads = [_spread([run.metrics[name] for run in runs if name in run.metrics]) for runs in models]
    means = [replace(metric, value=spread.mean).worth() for spread in spreads if spread]
    ranked = len(set(means)) > 1 and metric.higher_is_better is not None
    cells: list[Cell] = []
    for spread in spreads:
        text = spread.shown(metric.unit) if spread else "–"
        worth = replace(metric, value=spread.mean).worth() if spread else -math.inf
        best = ranked and worth == max(means) > -math.inf
        cells.append(Mark(text, "best") if best else text)
    return cells


def _spread(metrics: list[Metric]) -> Spread | None:
    """Return mean and deviation of a metric over seeds, if it has a value."""
    return Spread.of([metric.value for metric in metrics]) if metrics else None

"""The page of an endpoint: its answers to the smoke test, and its load test."""

import json
from typing import Any

from baton.infra.drawing.charts import Points, curves
from baton.infra.text import number
from baton.tasks.pages.blocks import Block, Cell, Code, Fold, Grid, Mark, Table, Text
from baton.tasks.pages.source import Source

COLUMNS = (
    "clients", "requests", "failed", "requests/s", "tokens/s", "first token, ms", "95 %", "between tokens, ms", "95 %",
    "whole, ms", "95 %",
)  # fmt: skip
LATENCIES = {"first_token_ms": "First token, ms", "inter_token_ms": "Between two tokens, ms"}


def endpoint(source: Source) -> list[Block]:
    content = json.loads((source.directory / "endpoint.json").read_text())
    levels: list[dict[str, Any]] = content["levels"]
    chat = "and a chat " if content["chat"] is not None else "(it has no chat template) "
    summary = f"Healthy after {content['started_s']:.0f} s; a completion {chat}answered under the model's digest."
    answers: list[Block] = [Code(content[kind], kind) for kind in ("completion", "chat") if content[kind] is not None]
    details = Fold("Answers and server arguments", [*answers, Code(" ".join(content["arguments"]), content["engine"])])
    if not levels:
        return [Text(summary), details]
    table = Table(
        "Load test: medians and 95th percentiles",
        list(COLUMNS),
        [_row(level) for level in levels],
        "r" * len(COLUMNS),
    )
    charts = [_charts(levels)] if len(levels) > 1 else []
    return [Text(summary), table, *charts, *_errors(levels), details]


def _row(level: dict[str, Any]) -> list[Cell]:
    failed: Cell = Mark(number(level["failed"]), "bad") if level["failed"] else "0"
    latencies = [f"{level[name][share]:.3g}" for name in (*LATENCIES, "whole_ms") for share in ("p50", "p95")]
    rates = [number(level[name]) for name in ("requests_per_s", "tokens_per_s")]
    return [number(level["concurrency"]), number(level["requests"]), failed, *rates, *latencies]


def _charts(levels: list[dict[str, Any]]) -> Grid:
    def over(name: str, share: str = "") -> Points:
        return [(level["concurrency"], level[name][share] if share else level[name]) for level in levels]

    figures = [curves("Answer tokens per second", {"tokens/s": over("tokens_per_s")}, "client")]
    for name, title in LATENCIES.items():
        lines = {"median": over(name, "p50"), "95 %": over(name, "p95"), "99 %": over(name, "p99")}
        figures.append(curves(f"{title}, by clients", lines, "client"))
    return Grid(figures)


def _errors(levels: list[dict[str, Any]]) -> list[Block]:
    errors = sorted({error for level in levels for error in level["errors"]})
    return [Text(f"Errors: {'; '.join(errors)}", "bad")] if errors else []

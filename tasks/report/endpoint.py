"""What there is to show of an endpoint: what it answered, and how it bore the load."""

import json
from typing import Any

from infra.charts import Points, curves
from infra.text import number
from tasks.report.blocks import Block, Cell, Code, Fold, Grid, Mark, Table, Text
from tasks.report.source import Source

COLUMNS = (
    "clients", "requests", "failed", "requests/s", "tokens/s", "first token, ms", "95 %", "between tokens, ms", "95 %",
    "whole, ms", "95 %",
)  # fmt: skip
LATENCIES = {"first_token_ms": "First token, ms", "inter_token_ms": "Between two tokens, ms"}


def endpoint(source: Source) -> list[Block]:
    told = json.loads((source.directory / "endpoint.json").read_text())
    levels: list[dict[str, Any]] = told["levels"]
    chat = "and a chat " if told["chat"] is not None else "(it has no chat template) "
    said = f"Healthy after {told['started_s']:.0f} s; a completion {chat}answered under the model's digest."
    answers: list[Block] = [Code(told[kind], kind) for kind in ("completion", "chat") if told[kind] is not None]
    how = Fold("What it answered, and how it is served", [*answers, Code(" ".join(told["arguments"]), told["engine"])])
    if not levels:
        return [Text(said), how]
    table = Table(
        "Under load: medians, and what 95 % of the requests stay below",
        list(COLUMNS),
        [_row(each) for each in levels],
        "r" * len(COLUMNS),
    )
    return [Text(said), table, _charts(levels), *_errors(levels), how]


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
    found = sorted({error for level in levels for error in level["errors"]})
    return [Text(f"Errors: {'; '.join(found)}", "bad")] if found else []

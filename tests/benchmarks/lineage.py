"""The lineage page with 2,000 executions and 20,000 artifacts in the store, on SQLite and on PostgreSQL.

    python -m tests.benchmarks.lineage [--executions N] [--rounds N]

Each figure is the time in ms that the server takes for a complete response: the median of the rounds, after a first
request that is reported separately (`cold`, which includes reading the graph). Ancestors are requested for randomly
chosen artifacts. PostgreSQL is Debian's, a temporary cluster on a socket; where it is not installed, only SQLite is
measured.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")

from starlette.testclient import TestClient

from baton.infra.lineage.api import Lineage
from baton.infra.lineage.app import alone
from baton.infra.tracking.store import prepare_client
from tests.benchmarks.harness import report, seconds
from tests.lineage.many import EXECUTIONS, Made, fill
from tests.lineage.postgres import Postgres, PostgresMissing

BARS = {"list": 200, "search": 200, "graph": 500, "ancestors": 200}  # ms


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--executions", type=int, default=EXECUTIONS)
    words.add_argument("--rounds", type=int, default=21)
    given = words.parse_args()
    prepare_client()
    rows: list[tuple[str, str]] = []
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        _measure("sqlite", f"sqlite:///{folder}/mlflow.db", given, rows, figures)
    try:
        with Postgres() as postgres:
            _measure("postgresql", postgres.database("lineage"), given, rows, figures)
    except PostgresMissing as missing:
        rows.append(("postgresql", str(missing)))
    report("lineage", rows, figures)


def _measure(
    name: str, uri: str, given: argparse.Namespace, rows: list[tuple[str, str]], figures: dict[str, float]
) -> None:
    made = fill(uri, given.executions)
    figures[f"{name}_artifacts"] = len(made.artifacts)
    rows.append((f"{name}: in the store", f"{len(made.executions):,} executions, {len(made.artifacts):,} artifacts"))
    figures[f"{name}_cold_ms"] = cold = 1000 * seconds(lambda: Lineage(uri).ancestors(made.artifacts[-1]))
    rows.append((f"{name}: ancestors, nothing read yet", f"{cold:,.0f} ms"))
    for what, ask in _questions(uri, made).items():
        ask()
        times = sorted(1000 * seconds(ask) for _ in range(given.rounds))
        figures[f"{name}_{what}_ms"] = middle = statistics.median(times)
        spread = f"({times[0]:.0f}–{times[-1]:.0f})"
        bar = f", bar {BARS[what]}" if what in BARS else ""
        rows.append((f"{name}: {what}", f"{middle:,.0f} ms {spread}{bar}"))


def _questions(uri: str, made: Made) -> dict[str, Callable[[], object]]:
    page, lineage, dice = TestClient(alone(uri)), Lineage(uri), random.Random(1)

    def get(address: str) -> Callable[[], object]:
        def ask() -> object:
            answer = page.get(f"/lineage{address}")
            assert answer.status_code == 200
            return answer

        return ask

    time.sleep(1)  # a page that has just started loads the graph in the background
    return {
        "list": get("/executions"),
        "search": get("/executions?q=recipe-3&state=FAILED"),
        "find": get("/search?q=recipe-3+grpo"),  # everything, by two words
        "find_text": get("/search?q=nothing-like-it"),  # in every value
        "graph": get(f"/executions/{made.large}"),  # 300 nodes: 150 runs, 150 artifacts
        "artifact": get(f"/artifacts/{made.artifacts[0]}"),
        "ancestors": lambda: lineage.ancestors(dice.choice(made.artifacts)),
        "descendants": lambda: lineage.descendants(made.artifacts[0]),
    }


if __name__ == "__main__":
    main()

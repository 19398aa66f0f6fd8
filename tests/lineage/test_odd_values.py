"""Pages are displayed whatever MLflow's database contains, since anyone who can write to MLflow can write any value."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from baton.infra.lineage.app import alone
from baton.infra.tracking.sqlite import make_tables
from baton.infra.tracking.store import tracking_uri

DEEP = 2000
NUMBERS = (1e308, -1e308, float("inf"), float("-inf"), 5e-324, 0.0, -0.0, 1e16, -1.0)
TIMES = (2**62, -(2**62), 0, -1, 2**63 - 1, None, 1_700_000_000_000)
TEXTS: tuple[Any, ...] = (
    "", " ", "fold:up", "None",
    "[" * DEEP, '{"a":' * DEEP, "NaN", "1e400", "null", "\u202e\U0010ffff", "[1, 2", '{"unit": [], "done": {}}',
    "9" * 5000, b"\xff\xfe not text", '{"unit": "share", "higher_is_better": true, "standard_error": 1e999}',
    '{"done": 1e308, "total": 1e308, "unit": "x", "shown": {"a": [1]}, "first": [0, 1e308], "time": -1e308}',
)  # fmt: skip


def add(database: sqlite3.Connection, run: str, start: int | None, end: int | None, status: str, **tags: Any) -> None:
    database.execute(
        "INSERT INTO runs (run_uuid, name, source_type, status, start_time, end_time, lifecycle_stage, experiment_id) "
        "VALUES (?, ?, 'LOCAL', ?, ?, ?, 'active', 0)",
        (run, tags.get("baton__error", run), status, start, end),
    )
    for name, value in tags.items():
        text = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
        words = f"INSERT INTO tags (key, value, run_uuid) VALUES (?, {text}, ?)"
        database.execute(words, (name.replace("__", "."), value, run))


def fill(database: sqlite3.Connection) -> dict[str, list[str]]:
    """Record an execution for each text: a model whose run read that model, and its evaluation."""
    found: dict[str, list[str]] = {"executions": [], "runs": [], "artifacts": []}
    database.execute("INSERT INTO registered_models (name, creation_time) VALUES ('odd', 0)")
    for number, text in enumerate(TEXTS):
        time, name, status = TIMES[number % len(TIMES)], f"e{number}", ("RUNNING", "FINISHED")[number % 2]
        execution = {"baton__execution": name}
        add(database, f"p{number}", time, time and -time, status, **execution, baton__role="execution",
            baton__plan=text, baton__name=text, mlflow__source__name=text, baton__setting__a=text)  # fmt: skip
        for key in ("a", ".".join("a" * 200), "a.b", "a..b", "."):
            database.execute(
                "INSERT INTO params (key, value, run_uuid) VALUES (?, CAST(? AS TEXT), ?)", (key, text, f"p{number}")
            )
        model, report = f"model{number:05}", f"report{number:05}"
        add(database, f"m{number}", time, None, status, **execution, baton__role="stage", baton__output=model,
            baton__output__kind="hf_model", baton__input__model=model, baton__input__=text, baton__input__rows=text,
            baton__progress=text, baton__seen=text,
            baton__job=text, baton__placed__price_per_hour=text, baton__error=text,
            baton__fact__label=text)  # fmt: skip
        add(database, f"r{number}", time, time, status, **execution, baton__role="stage", baton__output=report,
            baton__output__kind="eval_report", baton__input__model=model, baton__metric__right=text,
            baton__fact__headline="right", baton__fact__model_digest=model)  # fmt: skip
        add(database, f"o{number}", time, time, status, **execution, baton__role="stage", baton__output=text,
            baton__output__kind=text, baton__input__model=report)  # fmt: skip
        for of, key in (
            (f"m{number}", "output/parameters"),
            (f"m{number}", "cost_usd"),
            (f"r{number}", "output/right"),
        ):
            value = NUMBERS[number % len(NUMBERS)]
            database.execute(
                "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, 0, 0, ?)",
                (key, value, time or 0, of),
            )
        for step, value in enumerate(NUMBERS):
            words = "INSERT INTO metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES ('loss', ?, ?, ?, 0, ?)"
            database.execute(words, (value, TIMES[step % 5], (step - 3) * 2**40, f"m{number}"))
        database.execute(
            "INSERT INTO model_versions (name, version, creation_time, source, current_stage, status) "
            "VALUES ('odd', ?, ?, 'file:///x', 'None', 'READY')",
            (number, time),
        )
        tags = {
            "baton.model": model,
            "baton.eval.right": str(NUMBERS[number % len(NUMBERS)]),
            "baton.metric.right": text,
            "baton.outcome": "promoted",
            "baton.parent": text,
            "baton.champion": text,
        }
        for key, value in tags.items():
            database.execute(
                "INSERT INTO model_version_tags (name, version, key, value) VALUES ('odd', ?, ?, CAST(? AS TEXT))",
                (number, key, value),
            )
        found["executions"].append(name)
        found["runs"] += [f"m{number}", f"r{number}", f"o{number}"]
        found["artifacts"] += [model, report]
    return found


@pytest.mark.parametrize("only", ["lists", "executions", "runs", "artifacts"])
def test_every_page_answers(home: Path, only: str) -> None:
    make_tables(tracking_uri())
    with sqlite3.connect(home / "mlflow.db") as database:
        found = fill(database)
    addresses = [f"{kind}/{id}" for kind, ids in found.items() if kind == only for id in ids]
    if only == "lists":
        addresses = [f"executions?sort={by}&order={order}" for by in ("best", "cost", "duration", "started")
                     for order in ("asc", "desc")]  # fmt: skip
        addresses += ["executions?since=2000-01-01", "models", "metrics", "compare"]
        addresses += [f"compare?a={a}&b={b}" for a in found["artifacts"][:6] for b in found["artifacts"][-6:]]
    addresses += [f"{address}?x=time&y=log" for address in addresses if only == "runs"]
    addresses += [f"{address}/{data}" for address in addresses for data in ("recipe.json", "openlineage.json")
                  if only == "executions" or (only == "artifacts" and data[0] == "o")]  # fmt: skip
    page, wrong = TestClient(alone()), list[object]()
    for address in addresses:
        path, _, query = address.partition("?")
        for twin in dict.fromkeys([address, address if path.endswith(".json") else f"{path}.json?{query}"]):
            try:
                answer = page.get(f"/lineage/{twin}")
                if answer.status_code != 200:
                    wrong.append((twin, answer.status_code))
                elif ".json" in twin:
                    json.loads(answer.text, parse_constant=_refuse)
            except Exception as error:  # a server would answer with 500
                wrong.append((twin, f"{error!r:.300}", _where(error)))
    assert not wrong, f"{len(wrong)} wrong\n" + "\n".join(map(str, wrong[:25]))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _where(error: Exception) -> str:
    at, last = error.__traceback__, ""
    while at:
        name = at.tb_frame.f_code.co_filename
        last = f"{Path(name).name}:{at.tb_lineno}" if "/infra/" in name else last
        at = at.tb_next
    return last

"""Fill a store with many executions in bulk, with the rows that the recording API would write.

`python -m tests.lineage.many URI [EXECUTIONS]` fills an empty store. Names and tags are created by the code that
creates them for MLflow (infra/tracking/mlflow_records.py), and the tables are MLflow's own.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mlflow import MlflowClient
from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam, SqlRun, SqlTag
from sqlalchemy import create_engine, insert, text

from baton.infra.tracking.flatten import flatten
from baton.infra.tracking.mlflow_records import MlflowRecord, execution_record, stage_record
from baton.infra.tracking.spool import Execution, StageRun
from baton.infra.tracking.sqlite import make_tables
from tests.lineage.recorded import scored

EXECUTIONS = 2000
SWEEP = 150  # stages of the one large execution, which makes as many artifacts: 300 nodes
CODE = {"commit": "5268929f0c", "dirty": "false"}
VERSIONS = dict.fromkeys(
    ("python", "torch", "megatron-core", "transformers", "trl", "vllm", "mlflow", "numpy"), "1.2.3"
)
MACHINE = {"host": "node", "processor": "AMD EPYC", "cores": "2", "memory_gb": "25.3"}
SPEC = {
    "model": {"layers": 6, "hidden": 256, "heads": 4},
    "optimizer": {"lr": 3e-3, "warmup_steps": 40},
    "steps": 350,
    "seed": 1,
}

# title, kind of output, inputs as name -> title, facts
CHAIN: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
    ("corpus", "corpus", {}, {"documents": 690}),
    ("tokenizer", "tokenizer", {"corpus": "corpus"}, {"vocab_size": 4096}),
    ("shards", "tokenized_corpus", {"corpus": "corpus", "tokenizer": "tokenizer"}, {"tokens": 3_600_000}),
    ("pretrain", "megatron_checkpoint", {"data": "shards"}, {"step": 350, "validation_loss": 3.5}),
    ("convert", "hf_model", {"checkpoint": "pretrain"}, {"label": "base", "parameters": 5.8e6}),
    ("audit", "conversion_audit", {"checkpoint": "pretrain", "model": "convert"}, {"argmax_agreement": 1.0}),
    ("evaluate-base", "eval_report", {"model": "convert"}, scored("base", 0.04)),
    ("sft", "hf_model", {"model": "convert", "corpus": "corpus"}, {"label": "sft", "parameters": 5.8e6}),
    ("evaluate-sft", "eval_report", {"model": "sft", "corpus": "corpus"}, scored("sft", 0.14)),
    ("grpo", "hf_model", {"model": "sft", "corpus": "corpus"}, {"label": "grpo", "parameters": 5.8e6}),
    ("evaluate-grpo", "eval_report", {"model": "grpo", "corpus": "corpus"}, scored("grpo", 0.5)),
    ("publish", "published_model", {"model": "grpo", "corpus": "corpus"}, {"label": "grpo", "registry_version": 1}),
]  # fmt: skip
SHARED = 3  # the first stages run in every third execution and are cached in the next two


@dataclass
class Made:
    """The ids and digests in the store."""

    executions: list[str] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)  # ordered by creation
    large: str = ""  # the execution with SWEEP stages


def fill(uri: str, executions: int = EXECUTIONS, seed: int = 1) -> Made:
    """Fill the store. Every third execution makes its own data, and the others reuse it from the cache."""
    make_tables(uri)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("baton")
    id = int(experiment.experiment_id if experiment else client.create_experiment("baton"))
    dice, made = random.Random(seed), Made()
    engine = create_engine(uri)
    batch: dict[Any, list[dict[str, Any]]] = {SqlRun: [], SqlTag: [], SqlParam: [], SqlMetric: [], SqlLatestMetric: []}
    with engine.begin() as connection:
        for number, (words, curve) in enumerate(_all(executions, dice, made)):
            _add(batch, words, id, curve, f"{dice.getrandbits(128):032x}")
            if number % 500 == 499:
                _write(connection, batch)
        _write(connection, batch)
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            connection.execute(text("ANALYZE"))  # PostgreSQL does this by itself within minutes
    engine.dispose()
    return made


def _all(executions: int, dice: random.Random, made: Made) -> Iterator[tuple[MlflowRecord, bool]]:
    begun = 1_780_000_000.0
    shared: dict[str, str] = {}
    for number in range(executions):
        begun += 3600
        execution = Execution(
            f"{20260101 + number}-{number:06}", f"recipe-{number % 7}", SPEC | {"seed": number}, CODE,
            "pyflyte run x.py", begun, begun + 3000, dice.choice(["FINISHED"] * 9 + ["FAILED"]),
        )  # fmt: skip
        yield execution_record(execution), False
        made.executions.append(execution.id)
        digests = dict(shared) if number % 3 else {}
        for at, (title, kind, inputs, facts) in enumerate(CHAIN):
            cached = title in digests
            digest = digests.setdefault(title, f"{dice.getrandbits(256):064x}")
            if not cached:
                made.artifacts.append(digest)
            of = {name: digests[parent] for name, parent in inputs.items()}
            yield (
                stage_record(execution, title, _stage(title, kind, digest, of, facts, begun + 10 * at, cached), "p"),
                at == 3,
            )
        shared = {title: digests[title] for title, *_ in CHAIN[:SHARED]}
    large = Execution("29990101-large", "sweep", SPEC, CODE, "pyflyte run x.py", begun + 9000, begun + 9900, "FINISHED")
    made.large = large.id
    yield execution_record(large), False
    chain = [f"{dice.getrandbits(256):064x}" for _ in range(SWEEP)]
    for at, digest in enumerate(chain):
        parents = [chain[at // 3]] if at else []
        if at > 9 and at % 5 == 0:
            parents.append(chain[at - 7])
        of = {f"input.{n}": parent for n, parent in enumerate(parents)}
        title, kind, _, facts = CHAIN[at % len(CHAIN)]
        run = _stage(f"{title} {at}", kind, digest, of, facts, begun + 9000 + at, False)
        yield stage_record(large, f"{title}-{at}", run, "p"), False


def _stage(
    title: str, kind: str, digest: str, inputs: dict[str, str], facts: dict[str, Any], started: float, cached: bool
) -> StageRun:
    return StageRun(
        title=title, params=flatten(SPEC), inputs=inputs, job_dir=f"/gone/jobs/{title}", code=CODE, versions=VERSIONS,
        started=started, ended=started + 9, status="FINISHED", cached=cached,
        output={"kind": kind, "digest": digest, "facts": facts}, command=f"python -m tasks.{title}", machine=MACHINE,
    )  # fmt: skip


def _add(batch: dict[Any, list[dict[str, Any]]], words: MlflowRecord, experiment: int, curve: bool, run: str) -> None:
    start, end = int(words.started * 1000), None if words.ended is None else int(words.ended * 1000)
    batch[SqlRun].append(
        {"run_uuid": run, "name": words.name, "source_type": "LOCAL", "source_name": "", "entry_point_name": "",
         "user_id": "", "status": words.status, "start_time": start, "end_time": end, "lifecycle_stage": "active",
         "artifact_uri": "", "experiment_id": experiment}
    )  # fmt: skip
    for key, value in (words.key | words.tags).items():
        batch[SqlTag].append({"run_uuid": run, "key": key, "value": value})
    for key, value in words.params.items():
        batch[SqlParam].append({"run_uuid": run, "key": key, "value": value})
    points = [(key, 0, value) for key, value in words.metrics.items()]
    if curve:
        points += [("loss", step, 9 / (1 + step)) for step in range(20)]
    for key, step, number in points:
        one = {"run_uuid": run, "key": key, "value": number, "timestamp": start + step, "step": step, "is_nan": False}
        batch[SqlMetric].append(one)
    for one in {point["key"]: point for point in batch[SqlMetric][-len(points) :]}.values():
        batch[SqlLatestMetric].append(one)


def _write(connection: Any, batch: dict[Any, list[dict[str, Any]]]) -> None:
    for table, rows in batch.items():
        if rows:
            connection.execute(insert(table.__table__), rows)
            rows.clear()


if __name__ == "__main__":
    found = fill(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else EXECUTIONS)
    print(f"{len(found.executions)} executions, {len(found.artifacts)} artifacts; large: {found.large}")

"""Continuous training in pods: a day with another file of text, which two machines divide between them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.chain import baton, manifests, submit
from tests.cluster.client import Client
from tests.cluster.partitions import KINDS, Ran, succeed
from tests.cluster.propeller import Cluster
from tests.cluster.storage import Storage
from tests.data.by_hand import digest, new_job, run
from tests.tracking.conftest import Server
from tests.workflows.test_five_days import RECIPE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

FIRST, SECOND = ("argparse", "calendar", "difflib", "optparse", "tarfile"), "inspect"
LINES = 20  # lines of a module in a document


def put(cluster: Cluster, module: str) -> int:
    """Write a module of Python's library as a file of documents; returns their number."""
    lines = (Path(os.__file__).parent / f"{module}.py").read_text().splitlines(keepends=True)
    texts = ["".join(lines[start : start + LINES]) for start in range(0, len(lines), LINES)]
    content = "".join(json.dumps({"text": f"# {module}, {number}\n{text}"}) + "\n" for number, text in enumerate(texts))
    cluster.storage.put(f"{cluster.storage.root}/texts/{module}.jsonl", content.encode())
    return len(texts)


def recipe(cluster: Cluster) -> dict[str, Any]:
    source = {"kind": "jsonl", "path": f"{cluster.storage.root}/texts/*.jsonl"}
    return RECIPE | {
        "name": "days",
        "corpus": {"source": source, "held_out": 0.3, "partitions": {"size_mb": 0.02, "machines": 2}},
        "shards": {"machines": 2},
        "pretrain": RECIPE["pretrain"] | {"steps": 20, "checkpoints": {"every": 20}},
        "evaluate": {"bits_per_byte": {"held_out_bytes": 20_000}},
        "grow": RECIPE["grow"] | {"max_steps": 10, "min_steps": 10},
        "publish": {"name": "days"},
    }


@pytest.fixture(scope="module")
def submitted(tracked: Cluster, client: Client, mlflow: Server) -> Any:
    return submit(client, recipe(tracked), workflow="continuous.continue_training", MLFLOW_TRACKING_URI=mlflow.uri)


@pytest.fixture(scope="module")
def first(tracked: Cluster, submitted: Any) -> Ran:
    for module in FIRST:
        put(tracked, module)
    return Ran(tracked.storage, succeed(tracked, submitted))


@pytest.fixture(scope="module")
def new(tracked: Cluster, first: Ran) -> int:
    """The documents that are added on the second day."""
    return put(tracked, SECOND)


@pytest.fixture(scope="module")
def second(tracked: Cluster, client: Client, submitted: Any, first: Ran, new: int) -> Ran:
    return Ran(tracked.storage, succeed(tracked, client.again(submitted)))


def test_pods_share_the_reading_and_the_tokenization_of_each_day(first: Ran, second: Ran) -> None:
    for ran in (first, second):
        assert [ran.done.made().count(task) for task in KINDS] == [2, 2]
    assert (second.worked_on["scan"], second.worked_on["encode"]) == (0, 0)  # the pods that run after them


def test_a_day_reads_and_tokenizes_what_is_new(first: Ran, second: Ran, new: int) -> None:
    for task in KINDS:
        assert (second.worked_on - first.worked_on)[task] == new
        known, found = first.partitions[task], second.partitions[task]
        assert known.items() <= found.items()
        assert sum(found[key] for key in found.keys() - known.keys()) == new


def test_its_increment_is_that_of_one_machine(
    tracked: Cluster, second: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (increment,) = [each for each in manifests(tracked.storage) if "known.0" in each["parents"]]
    known = brought(tracked.storage, increment["parents"]["known.0"], tmp_path / "known")
    for name, value in tracked.storage.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    spec = increment["spec"] | {"partitions": increment["spec"]["partitions"] | {"machines": 1}}
    alone = run(new_job(tmp_path / "alone", "increment", spec, known=[known]))
    assert digest(alone) == increment["digest"]


def brought(storage: Storage, artifact: str, folder: Path) -> Path:
    """Fetch the artifact with this digest to this machine."""
    there = f"{baton(storage)}/artifacts/{artifact}/"
    for uri in storage.list(there):
        path = folder / uri.removeprefix(there)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.get(uri) or b"")
    return folder

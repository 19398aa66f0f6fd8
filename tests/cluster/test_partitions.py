"""Partitions that are read and tokenized by separate pods, which share only the storage."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from baton.infra.process.limits import cores
from tests.cluster.catalog import Catalog
from tests.cluster.chain import baton, submit
from tests.cluster.client import Client
from tests.cluster.partitions import KINDS, Ran, partitions, succeed
from tests.cluster.pod import Pod
from tests.cluster.propeller import Cluster
from tests.cluster.storage import Storage
from tests.tracking.conftest import Server

pytestmark = pytest.mark.slow

FILES, NEW = range(12), 6  # the number of the file that is added later
ROWS, TEXTS = 60, 50  # documents of a file, and the number of distinct ones


def put(cluster: Cluster, number: int) -> None:
    texts = (f"file {number} says {row % TEXTS}, and goes on to say more. " * 30 for row in range(ROWS))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    cluster.storage.put(f"{cluster.storage.root}/texts/{number:02}.jsonl", lines.encode())


def recipe(cluster: Cluster, machines: int) -> dict[str, Any]:
    """Return a recipe for the text's corpus, its tokenizer and its tokens."""
    source = {"kind": "jsonl", "path": f"{cluster.storage.root}/texts/*.jsonl"}
    return {
        "name": "partitions",
        "corpus": {"source": source, "held_out": 0.3, "partitions": {"size_mb": 0.05, "machines": machines}},
        "tokenizer": {"vocab_size": 260},  # bytes and special tokens only, so the tokenizer does not depend on the text
        "shards": {"machines": machines},
        "audit": None,
    }


class Killed:
    """Kills the first attempt at one share of each kind after it has stored a partition."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.chosen: dict[str, str] = {}
        self.begun: dict[str, set[str]] = {}  # the partitions on the pod's disk, complete or not
        self.left: dict[str, set[str]] = {}  # those of them that are in storage

    def __call__(self, pod: Pod) -> None:
        if pod.task not in KINDS or pod.attempt or self.chosen.setdefault(pod.task, pod.name) != pod.name:
            return
        kind = KINDS[pod.task]
        while pod.alive() and not on_disk(pod, kind) & partitions(self.storage, kind).keys():
            time.sleep(0.02)
        pod.pause()
        self.begun[pod.task] = on_disk(pod, kind)
        pod.kill()
        self.left[pod.task] = self.begun[pod.task] & partitions(self.storage, kind).keys()


def on_disk(pod: Pod, kind: str) -> set[str]:
    names = (path.name for path in pod.home.glob(f"root/.baton/jobs/*/*/*.{kind}*"))
    return {f"{name.partition('.')[0]}.{kind}" for name in names}


@pytest.fixture(scope="module")
def killed(tracked: Cluster) -> Killed:
    return Killed(tracked.storage)


@pytest.fixture(scope="module")
def submitted(tracked: Cluster, client: Client, mlflow: Server) -> Any:
    return submit(client, recipe(tracked, machines=2), MLFLOW_TRACKING_URI=mlflow.uri)


@pytest.fixture(scope="module")
def first(tracked: Cluster, submitted: Any, killed: Killed) -> Ran:
    """A run on slow storage with two machines, one of which is killed in each stage."""
    for number in {*FILES} - {NEW}:
        put(tracked, number)
    faults = tracked.storage.faults
    faults.about, faults.delay_s = "PUT .*/partitions/", 0.1
    done = succeed(tracked, submitted, killed)
    faults.delay_s = 0.0
    return Ran(tracked.storage, done)


@pytest.fixture(scope="module")
def second(tracked: Cluster, client: Client, submitted: Any, first: Ran) -> Ran:
    """Another run after a file was added."""
    put(tracked, NEW)
    return Ran(tracked.storage, succeed(tracked, client.again(submitted)))


@pytest.mark.parametrize("task", KINDS)
def test_a_pod_that_is_killed_loses_what_its_workers_were_at(killed: Killed, first: Ran, task: str) -> None:
    begun, left = killed.begun[task], killed.left[task]
    assert left and len(begun - left) <= cores()
    assert [each.attempt for each in first.done.of(task) if each.failed] == [0]
    ((keys, worked_on),) = [share for share in first.shares if share[0] >= begun]
    of_partition = first.partitions[task]
    assert 0 < worked_on <= sum(of_partition[key] for key in keys - left)


def test_another_file_costs_its_own_partitions_and_tokens(first: Ran, second: Ran) -> None:
    read, encoded = 2 * ["read_partitions"], 2 * ["encode_partitions"]
    stages = ["stages", *read, "prepare_corpus", "train_tokenizer", *encoded, "tokenize", "report"]
    assert second.done.made() == stages
    for task, documents in zip(KINDS, (ROWS, TEXTS), strict=True):
        assert first.partitions[task].items() <= second.partitions[task].items()
        new = second.partitions[task].keys() - first.partitions[task].keys()
        assert sum(second.partitions[task][key] for key in new) == documents
    worked_on = second.worked_on - first.worked_on
    assert (worked_on["read_partitions"], worked_on["encode_partitions"]) == (ROWS, TEXTS)
    assert (worked_on["scan"], worked_on["encode"]) == (0, 0)
    assert {second.fetched[key] for of_task in first.partitions.values() for key in of_task} == {1}  # fetched once each


def test_one_machine_makes_the_same_from_the_start(
    tracked: Cluster, client: Client, mlflow: Server, first: Ran, second: Ran
) -> None:
    tracked.storage.remove(f"{baton(tracked.storage)}/")
    execution = submit(client, recipe(tracked, machines=1), MLFLOW_TRACKING_URI=mlflow.uri)
    alone = Ran(tracked.storage, succeed(replace(tracked, catalog=Catalog()), execution))
    assert len(alone.made) == 2
    assert alone.made == second.made - first.made
    assert alone.partitions == second.partitions

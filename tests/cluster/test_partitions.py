"""A corpus whose partitions are read by pods of their own, which share nothing but the storage."""

import json
from typing import Any

import pytest

from tests.cluster.chain import baton, manifests, submit
from tests.cluster.client import Client
from tests.cluster.propeller import Cluster, Done
from tests.tracking.conftest import Server

pytestmark = pytest.mark.slow

FILES = 12


def put(cluster: Cluster, number: int) -> None:
    texts = (f"file {number} says {row % 50}, and goes on to say more. " * 20 for row in range(60))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    cluster.storage.put(f"{cluster.storage.root}/texts/{number:02}.jsonl", lines.encode())


def made(cluster: Cluster, client: Client, mlflow: Server, **partitions: Any) -> Done:
    source = {"kind": "jsonl", "path": f"{cluster.storage.root}/texts/*.jsonl"}
    recipe = {
        "name": "partitions",
        "corpus": {"source": source, "held_out": 0.3, "partitions": {"size_mb": 0.05, **partitions}},
        "audit": None,
    }
    done = cluster.execute(submit(client, recipe, MLFLOW_TRACKING_URI=mlflow.uri))
    assert done.failed is None, done.why()
    return done


def corpora(cluster: Cluster) -> set[str]:
    return {each["digest"] for each in manifests(cluster.storage) if each["kind"] == "corpus"}


def test_pods_read_the_partitions_once_and_the_corpus_is_the_same(
    tracked: Cluster, client: Client, mlflow: Server
) -> None:
    for number in range(FILES):
        put(tracked, number)

    shared = made(tracked, client, mlflow, machines=3)

    assert shared.made() == ["stages", *3 * ["read_partitions"], "prepare_corpus", "report"]
    (digest,) = corpora(tracked)
    assert len(kept := partitions(tracked)) >= FILES

    tracked.storage.remove(f"{baton(tracked.storage)}/jobs/corpus-")
    tracked.catalog.forget("prepare_corpus")
    made(tracked, client, mlflow)
    assert corpora(tracked) == {digest}
    assert partitions(tracked) == kept

    put(tracked, FILES)
    made(tracked, client, mlflow, machines=2)
    assert 1 <= len(partitions(tracked) - kept) <= 2  # of the new file


def partitions(cluster: Cluster) -> set[str]:
    """The keys of the partitions in storage."""
    folder = f"{baton(cluster.storage)}/partitions/"
    return {uri.removeprefix(folder).split("/")[0] for uri in cluster.storage.list(folder)}

"""Partitions that are read and tokenized by pods of their own, which share nothing but the storage."""

import json
from typing import Any

import pytest

from tests.cluster.chain import baton, digests, submit
from tests.cluster.client import Client
from tests.cluster.propeller import Cluster, Done
from tests.tracking.conftest import Server

pytestmark = pytest.mark.slow

FILES = 12


def put(cluster: Cluster, number: int) -> None:
    texts = (f"file {number} says {row % 50}, and goes on to say more. " * 20 for row in range(60))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    cluster.storage.put(f"{cluster.storage.root}/texts/{number:02}.jsonl", lines.encode())


def put_all(cluster: Cluster) -> None:
    for number in range(FILES):
        put(cluster, number)


def made(cluster: Cluster, client: Client, mlflow: Server, machines: int = 1) -> Done:
    """The text's corpus, its tokenizer and its tokens."""
    recipe = {
        "name": "partitions",
        "corpus": corpus(cluster, machines),
        "tokenizer": {"vocab_size": 300},
        "shards": {"machines": machines},
        "audit": None,
    }
    done = cluster.execute(submit(client, recipe, MLFLOW_TRACKING_URI=mlflow.uri))
    assert done.failed is None, done.why()
    return done


def corpus(cluster: Cluster, machines: int) -> dict[str, Any]:
    source = {"kind": "jsonl", "path": f"{cluster.storage.root}/texts/*.jsonl"}
    return {"source": source, "held_out": 0.3, "partitions": {"size_mb": 0.05, "machines": machines}}


MADE = ("corpus", "tokenized_corpus")


def test_pods_work_on_the_partitions_once_and_the_result_is_the_same(
    tracked: Cluster, client: Client, mlflow: Server
) -> None:
    put_all(tracked)

    shared = made(tracked, client, mlflow, machines=2)

    read, encoded = 2 * ["read_partitions"], 2 * ["encode_partitions"]
    assert shared.made() == ["stages", *read, "prepare_corpus", "train_tokenizer", *encoded, "tokenize", "report"]
    assert len(before := digests(tracked.storage, MADE)) == 2
    scans, tokens = (partitions(tracked, kind) for kind in ("scan", "tokens"))
    assert len(scans) >= FILES and len(tokens) >= FILES

    for stage, function in ("corpus", "prepare_corpus"), ("shards", "tokenize"):
        tracked.storage.remove(f"{baton(tracked.storage)}/jobs/{stage}-")
        tracked.catalog.forget(function)
    made(tracked, client, mlflow)
    assert digests(tracked.storage, MADE) == before
    assert partitions(tracked, "scan") == scans and partitions(tracked, "tokens") == tokens


def partitions(cluster: Cluster, kind: str) -> set[str]:
    """The keys of the partitions of a kind in storage."""
    folder = f"{baton(cluster.storage)}/partitions/"
    keys = {uri.removeprefix(folder).split("/")[0] for uri in cluster.storage.list(folder)}
    return {key for key in keys if key.endswith(f".{kind}")}

"""Paths of a recipe in pods that cannot read the client's files."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.infra.storage.address import DIGEST
from tests.cluster.chain import manifests, submit
from tests.cluster.client import Client
from tests.cluster.propeller import Cluster, Done
from tests.convert.tiny import make_tokenizer
from tests.tracking.conftest import Server

pytestmark = pytest.mark.long


def rows(folder: Path) -> Path:
    """Two files of lines, and one that the recipe's glob excludes."""
    (folder / "part").mkdir(parents=True)
    for name in ("a.jsonl", "part/b.jsonl"):
        texts = [f"{name} says {number}, and goes on to say more. " * 20 for number in range(40)]
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "notes.txt").write_text("not to be sent")
    return folder


def recipe(path: str, tokenizer: Path | str) -> dict[str, Any]:
    source = {"kind": "jsonl", "path": path}
    return {
        "name": "paths",
        "corpus": {"source": source, "held_out": 0.3},
        "tokenizer": {"existing": str(tokenizer)},
        "shards": {},
        "audit": None,
    }


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "made")


@pytest.fixture(scope="module")
def run(
    tracked: Cluster, client: Client, mlflow: Server, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Done:
    """Run a recipe with rows and a tokenizer on the client's disk."""
    here = rows(tmp_path_factory.mktemp("rows") / "mine")
    submitted = submit(client, recipe(f"{here}/**/*.jsonl", tokenizer), MLFLOW_TRACKING_URI=mlflow.uri)
    return tracked.execute(submitted)


def test_small_files_travel_with_the_run(tracked: Cluster, run: Done) -> None:
    assert run.failed is None, run.why()
    assert run.made() == ["stages", "prepare_corpus", "train_tokenizer", "tokenize", "report"]
    (corpus,) = [each for each in manifests(tracked.storage) if each["kind"] == "corpus"]
    assert corpus["facts"]["documents"] + corpus["facts"]["held_out_documents"] == 80
    assert DIGEST in corpus["spec"]["source"]["path"]


def test_the_same_files_from_another_place_are_a_hit(
    tracked: Cluster, client: Client, mlflow: Server, run: Done, tokenizer: Path, tmp_path: Path
) -> None:
    elsewhere = rows(tmp_path / "moved" / "mine")
    again = submit(client, recipe(f"{elsewhere}/**/*.jsonl", tokenizer), MLFLOW_TRACKING_URI=mlflow.uri)
    done = tracked.execute(again)
    assert done.failed is None, done.why()
    assert done.made() == ["stages", "report"]


def test_files_in_a_bucket_are_read_where_they_are(
    tracked: Cluster, client: Client, mlflow: Server, run: Done, tokenizer: Path, tmp_path: Path
) -> None:
    """The client has no credentials for the bucket and reports this, and the pods validate the files."""
    storage = tracked.storage
    for root, folder in (("rows", rows(tmp_path / "rows")), ("tokenizer", tokenizer)):
        for path in folder.rglob("*"):
            if path.is_file():
                storage.put(f"{storage.root}/users/{root}/{path.relative_to(folder)}", path.read_bytes())
    named = recipe(f"{storage.root}/users/rows/**/*.jsonl", f"{storage.root}/users/tokenizer")
    done = tracked.execute(submit(client, named, MLFLOW_TRACKING_URI=mlflow.uri, AWS_EC2_METADATA_DISABLED="true"))
    assert done.failed is None, done.why()
    assert done.made() == ["stages", "prepare_corpus", "train_tokenizer", "report"]  # the same bytes, so no new shards


def test_an_address_where_nothing_is_ends_in_the_first_pod(tracked: Cluster, client: Client, mlflow: Server) -> None:
    named = recipe(f"{tracked.storage.root}/users/none/*.jsonl", f"{tracked.storage.root}/users/tokenizer")
    done = tracked.execute(submit(client, named, MLFLOW_TRACKING_URI=mlflow.uri, AWS_EC2_METADATA_DISABLED="true"))
    assert done.made() == ["stages"]
    assert "corpus.source.path" in str(done.failed) and "there are none" in str(done.failed)

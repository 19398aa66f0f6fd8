"""What a user reads when something is wrong in a pod: Flyte's message and MLflow have the sentence, and no recipe."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.chain import BASE, submit
from tests.cluster.client import Client
from tests.cluster.pod import ROOT
from tests.cluster.propeller import Cluster, Done
from tests.cluster.test_chain import execution
from tests.tracking.conftest import Server

pytestmark = pytest.mark.long

SFT: dict[str, Any] = {"sft": {"data": "chat", "steps": 1}}


def run(cluster: Cluster, client: Client, mlflow: Server, recipe: dict[str, Any], **environment: str) -> Done:
    """The client has no credentials for the storage: the first pod looks."""
    environment |= {"MLFLOW_TRACKING_URI": mlflow.uri, "AWS_EC2_METADATA_DISABLED": "true"}
    return cluster.execute(submit(client, recipe, ROOT, **environment))


def read(done: Done, mlflow: Server) -> str:
    """What Flyte shows, after checking that MLflow says the same."""
    message = str(done.failed)
    assert len(message.splitlines()) <= 10, message
    assert "msgpack" not in message and '"vocab_size"' not in message
    assert done.failed and not done.failed.system, message
    parent, stages = execution(done, mlflow)
    assert parent.info.status == "FAILED"
    (recorded,) = [each.data.tags["baton.error"] for each in [parent, *stages] if "baton.error" in each.data.tags]
    assert recorded.splitlines()[0] in message
    return message


def test_a_bad_row_in_a_bucket(tracked: Cluster, client: Client, mlflow: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
    storage = tracked.storage
    storage.put(f"{storage.root}/users/chat/rows.jsonl", f"{json.dumps(chat)}\n{{broken\n".encode())
    rows = {"data": {"chat": {"path": f"{storage.root}/users/chat/rows.jsonl"}}, "post_training": [SFT]}
    done = run(tracked, client, mlflow, BASE | rows)
    said = read(done, mlflow)
    assert "data.chat.path" in said and "rows.jsonl, line 2" in said and "faulty: drop" in said
    assert done.made() == ["stages"] and "Traceback" not in said


def test_a_bucket_that_is_not_there(tracked: Cluster, client: Client, mlflow: Server) -> None:
    missing = BASE | {"corpus": {"source": {"kind": "jsonl", "path": "s3://no-such-bucket/text"}}}
    said = read(run(tracked, client, mlflow, missing), mlflow)
    assert "corpus.source.path" in said and "no bucket no-such-bucket" in said


FAULTY = """
def rows(limit: int = 0):
    yield {"prompt": "a", "completion": "b"}
    raise KeyError("the ninth column")
"""


def test_a_function_of_the_user_s_that_raises(tracked: Cluster, client: Client, mlflow: Server, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAULTY)
    rows = {"data": {"chat": {"function": f"{tmp_path}/mine.py:rows"}}, "post_training": [SFT]}
    said = read(run(tracked, client, mlflow, BASE | rows), mlflow)
    assert "KeyError" in said and "the ninth column" in said


def test_a_secret_that_the_cluster_lacks(tracked: Cluster, client: Client, mlflow: Server) -> None:
    """Flyte leaves it out. Another list of secrets, on the same code, is another version."""
    corpus = BASE["corpus"] | {"pod": {"secrets": ["MY_TOKEN"]}}
    of_a_stage = run(tracked, client, mlflow, BASE | {"corpus": corpus})
    said = read(of_a_stage, mlflow)
    assert said.startswith("MY_TOKEN: ") and "kubectl -n flytesnacks-development create secret generic baton" in said
    assert of_a_stage.made() == ["stages", "prepare_corpus"]
    of_all = run(tracked, client, mlflow, BASE, BATON_SECRETS="THEIR_TOKEN")
    assert read(of_all, mlflow).startswith("THEIR_TOKEN: ") and of_all.made() == ["stages"]

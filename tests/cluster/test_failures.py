"""The messages about failures in a pod, as users see them: Flyte and MLflow show the message without the recipe."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.cluster.cgroup import can_be_made
from tests.cluster.chain import BASE, submit
from tests.cluster.client import Client
from tests.cluster.pod import ROOT, Pod, can_be_alone
from tests.cluster.propeller import Cluster, Done, Watch
from tests.cluster.test_chain import execution
from tests.tracking.conftest import Server
from tests.workflows.statements import GRPO

pytestmark = pytest.mark.long

HERE = "s3://flyte-users"  # a bucket with the user's data
CHAT = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
LIMIT = "700Mi"  # memory limit; the process of a stage uses about 250 MiB
DISK = "24m"  # room for the code, but not for the text
MINE = """
import random


def text(what: str):
    yield "some words"
    if what == "raise":
        raise KeyError("the ninth column")
    print(what, flush=True)
    kept = []
    while what == "grow":
        kept.append(bytearray(b"x" * 2**26))
    for number in range(2_000 if what == "fill" else 100):
        yield random.Random(number).randbytes(20_000).hex()
"""
SCORES = """
def score(completions, **columns):
    return [columns["the answer"] for _ in completions]
"""


@pytest.fixture(scope="module")
def users(cluster: Cluster) -> None:
    """The bucket with the user's data."""
    client = cluster.storage.client
    client.create_bucket(Bucket=HERE.removeprefix("s3://"))
    for name, content in {
        "chat/rows.jsonl": f"{json.dumps(CHAT)}\n{{broken\n",
        "tokenizer/tokenizer.json": "{broken",
        "tokenizer/tokenizer_config.json": "{}",
    }.items():
        client.put_object(Bucket=HERE.removeprefix("s3://"), Key=name, Body=content.encode())


class Started:
    """Starts executions with other inputs than the client's, as Flyte's console can: pods are the first to see them."""

    def __init__(self, cluster: Cluster, client: Client, mlflow: Server, folder: Path) -> None:
        (folder / "mine.py").write_text(MINE)
        source = {"kind": "function", "function": f"{folder}/mine.py:text", "arguments": {"what": "go on"}}
        recipe = {"name": "text", "audit": None, "corpus": {"source": source}}
        self._cluster, self._client = cluster, client
        self._first = submit(client, recipe, ROOT, MLFLOW_TRACKING_URI=mlflow.uri)
        self._corpus = client.inputs(self._first)["recipe"]["corpus"]

    def of(self, recipe: dict[str, Any], watch: Watch | None = None, **of_the_cluster: Any) -> Done:
        again = self._client.with_inputs(self._first, recipe=recipe)
        return replace(self._cluster, **of_the_cluster).execute(again, watch)

    def of_text(self, what: str, memory: str = "2Gi", **of_the_cluster: Any) -> Done:
        """Run a recipe with a single stage, which reads the text of a user's function."""
        source = self._corpus["source"] | {"arguments": {"what": what}}
        corpus = self._corpus | {"source": source, "pod": {"resources": {"memory": memory}}}
        return self.of({"name": "text", "audit": None, "corpus": corpus}, **of_the_cluster)


@pytest.fixture(scope="module")
def started(
    tracked: Cluster, client: Client, mlflow: Server, users: None, tmp_path_factory: pytest.TempPathFactory
) -> Started:
    return Started(tracked, client, mlflow, tmp_path_factory.mktemp("mine"))


def read(done: Done, mlflow: Server) -> str:
    """Return Flyte's message, after asserting that MLflow has the same one."""
    message = str(done.failed)
    assert len(message.splitlines()) <= 10, message
    assert "msgpack" not in message and '"vocab_size"' not in message and "Traceback" not in message
    assert done.failed and not done.failed.system, message
    parent, stages = execution(done, mlflow)
    assert parent.info.status == "FAILED"
    recorded = {each.data.tags["baton.error"] for each in [parent, *stages] if "baton.error" in each.data.tags}
    assert [each.splitlines()[0] in message for each in recorded] == [True]
    return message


def with_corpus(**fields: Any) -> dict[str, Any]:
    return BASE | {"corpus": BASE["corpus"] | fields}


def jsonl(path: str) -> dict[str, Any]:
    return with_corpus(source={"kind": "jsonl", "path": path})


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (
            {"data": {"chat": {"path": f"{HERE}/chat/rows.jsonl"}}},
            ["data.chat.path", "rows.jsonl, line 2", "faulty: drop"],
        ),
        (jsonl("s3://no-such-bucket/text"), ["corpus.source.path", "no bucket no-such-bucket"]),
        (jsonl("foo://text"), ["corpus.source.path", "no access to foo://", "The images read s3, gs, az and hf"]),
        (jsonl("/home/me/text"), ["corpus.source.path", "/home/me/text does not exist", "name an address (s3://…)"]),
        ({"tokenizer": {"existing": f"{HERE}/tokenizer"}}, ["tokenizer.existing", "tokenizer.json"]),
        (with_corpus(held_out=7), ["corpus.held_out: 7", "less than 0.5"]),
    ],
    ids=["a bad row", "no such bucket", "unknown protocol", "a path of another machine", "tokenizer", "invalid field"],
)
def test_what_the_first_pod_reads(started: Started, mlflow: Server, recipe: dict[str, Any], said: list[str]) -> None:
    done = started.of(BASE | recipe)
    assert done.made() == ["stages"]
    message = read(done, mlflow)
    assert all(words in message for words in said), message


def test_a_pod_without_the_gpus_that_it_asked_for(started: Started, mlflow: Server) -> None:
    """Without the error the pod would train on its CPUs."""
    done = started.of(with_corpus(pod={"resources": {"gpu": 1}}))
    assert read(done, mlflow).startswith(
        "this pod asked for GPUs (1) and has none: raise gpu in Flyte's task_resources"
    )
    assert done.made() == ["stages", "prepare_corpus"]


def test_a_secret_that_the_cluster_lacks(tracked: Cluster, client: Client, started: Started, mlflow: Server) -> None:
    """Flyte leaves out the secret. The same code with another list of secrets is another version."""
    of_a_stage = started.of(with_corpus(pod={"secrets": ["MY_TOKEN"]}))
    said = read(of_a_stage, mlflow)
    assert (
        said.startswith("this pod lacks MY_TOKEN,")
        and "kubectl -n flytesnacks-development create secret generic baton" in said
    )
    assert of_a_stage.made() == ["stages", "prepare_corpus"]
    of_all = tracked.execute(submit(client, BASE, ROOT, MLFLOW_TRACKING_URI=mlflow.uri, BATON_SECRETS="THEIR_TOKEN"))
    assert read(of_all, mlflow).startswith("this pod lacks THEIR_TOKEN,") and of_all.made() == ["stages"]


def test_a_function_of_the_user_s_that_raises(started: Started, mlflow: Server) -> None:
    said = read(started.of_text("raise"), mlflow)
    assert "KeyError" in said and "the ninth column" in said


@pytest.mark.slow
def test_a_reward_that_raises(tracked: Cluster, client: Client, mlflow: Server, tmp_path: Path) -> None:
    """The trial of the rewards fails before any training."""
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{n} =", "answer": "{n}"}}\n' for n in range(8)))
    (tmp_path / "scores.py").write_text(SCORES)
    grpo = GRPO["grpo"] | {"data": "sums", "rewards": [f"{tmp_path}/scores.py:score"]}
    recipe = BASE | {"data": {"sums": {"path": f"{tmp_path}/rows.jsonl"}}, "post_training": [{"grpo": grpo}]}
    recipe |= {"pretrain": BASE["pretrain"] | {"steps": 20}}
    done = tracked.execute(submit(client, recipe, ROOT, MLFLOW_TRACKING_URI=mlflow.uri))
    sentence = "rewards: post_training.0.grpo.rewards: reward score raised KeyError: 'the answer' (scores.py, line 3"
    assert read(done, mlflow).startswith(sentence)
    assert not done.of("grpo")


def test_a_storage_that_the_pod_may_not_write_to(started: Started, cluster: Cluster, mlflow: Server) -> None:
    faults = cluster.storage.faults
    faults.about, faults.status, faults.refused = "PUT .*/baton/", 403, 10**6
    try:
        said = read(started.of_text("go on"), mlflow)
    finally:
        faults.status, faults.refused = 503, 0
    assert "This process's credentials (AWS_ACCESS_KEY_ID" in said and "writing and deleting in BATON_STORAGE" in said


@pytest.mark.slow
def test_a_tracking_server_that_is_away(started: Started, mlflow: Server) -> None:
    """Each attempt waits for the server for a minute."""
    mlflow.kill()
    try:
        done = started.of_text("go on")
    finally:
        mlflow.start()
    message = str(done.failed)
    assert message.startswith(f"MLFLOW_TRACKING_URI={mlflow.uri}: the tracking store is unreachable")
    assert "Flyte's default-env-vars" in message and len(message.splitlines()) == 1
    assert done.made() == 3 * ["stages"]


def test_a_tracking_server_that_is_away_while_a_stage_runs(started: Started, mlflow: Server) -> None:
    """The pod waits for the server after the stage has finished."""

    def watch(pod: Pod) -> None:
        if pod.task == "prepare_corpus":
            until(pod, lambda: bool(running(mlflow)))
            mlflow.kill()
            until(pod, lambda: "tracking: uploading the run's records" in pod.log.read_text())
            mlflow.start()

    done = started.of_text("go on", watch=watch)
    assert done.failed is None, done.why()
    assert done.made() == ["stages", "prepare_corpus", "report"]
    parent, stages = execution(done, mlflow)
    assert [each.info.status for each in (parent, *stages)] == ["FINISHED"] * 3


def running(mlflow: Server) -> list[Any]:
    """Return the stages that are running according to MLflow."""
    found = MlflowClient(mlflow.uri)
    runs = found.search_runs([each.experiment_id for each in found.search_experiments()], "status = 'RUNNING'")
    return [each for each in runs if each.data.tags.get("baton.role") != "execution"]


def until(pod: Pod, true: Callable[[], bool]) -> None:
    while not true():
        assert pod.alive(), pod.log.read_text()
        time.sleep(0.1)


@pytest.mark.skipif(not can_be_alone(), reason="takes root and namespaces")
def test_a_full_disk(started: Started, mlflow: Server) -> None:
    said = read(started.of_text("fill", pods=lambda _: partial(Pod, disk=DISK)), mlflow)
    assert "no space left on device" in said and "pod.resources.ephemeral_storage" in said


@pytest.mark.skipif(not can_be_made(), reason="takes root and a writable cgroup")
def test_a_stage_that_is_killed_for_memory(started: Started, mlflow: Server) -> None:
    """Flyte learns this from Kubernetes, ignores everything that the pod left, and retries; the retry runs nothing
    again."""
    done = started.of_text("grow", memory=LIMIT)
    killed, retry = done.of("prepare_corpus")
    assert "terminated with exit code (0). Reason [OOMKilled]. Message: \n." in str(killed.failed)
    sentence = "corpus: killed for memory at 700 MiB, the limit here; the recipe sets 700 MiB. "
    sentence += "Set pod.resources.memory of corpus in the recipe"
    assert sentence in killed.said and "grow\n" in killed.said
    assert sentence in retry.said and "grow\n" not in retry.said
    assert read(done, mlflow).startswith(sentence)

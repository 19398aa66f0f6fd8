"""SFT, DPO, GRPO and an evaluation in pods that are terminated, killed or lost: the next pods resume, and produce the
same bytes."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.cluster.chain import (
    BASE,
    MEASURED,
    TUNED,
    TUNING,
    Disturbed,
    baton,
    digests,
    folder_of,
    forget,
    manifests,
    recorded,
    submit,
    training,
    whole,
)
from tests.cluster.client import Client
from tests.cluster.pod import Pod
from tests.cluster.propeller import Cluster, Done, Watch
from tests.tracking.conftest import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SHORT = BASE | {"pretrain": BASE["pretrain"] | {"steps": 30}}


def submitted(client: Client, mlflow: Server, **stages: Any) -> Any:
    return submit(client, SHORT | stages, MLFLOW_TRACKING_URI=mlflow.uri)


def succeed(cluster: Cluster, execution: Any, watch: Watch | None = None) -> Done:
    done = cluster.execute(execution, watch)
    assert done.failed is None, done.why()
    return done


class Lost:
    """A pod that Flyte assumes to be dead, but which keeps running."""

    pod: Pod

    def __call__(self, pod: Pod) -> None:
        self.pod = pod
        pod.lose()

    def end(self) -> int:
        code = self.pod.process.wait()
        shutil.rmtree(self.pod.home)
        return code


class Tuned:
    """SFT, DPO and GRPO without disturbance, and again with disturbances: the first pod of each receives SIGTERM, and
    the second is killed in SFT and GRPO, and lost in DPO."""

    def __init__(self, cluster: Cluster, client: Client, mlflow: Server) -> None:
        self.cluster, self.storage = cluster, cluster.storage
        execution = submitted(client, mlflow, **TUNING)
        succeed(cluster, execution)
        self.before = digests(self.storage)
        for stage in TUNED:
            self.storage.remove(f"{baton(self.storage)}/jobs/{stage}-")
            cluster.catalog.forget(stage)
        for each in manifests(self.storage):
            if each["kind"] == "hf_model" and each["facts"]["label"] in TUNED:
                self.storage.remove(f"{folder_of(self.storage, each)}/")
        self.lost = Lost()
        seconds: dict[str, Callable[[Pod], None]] = {"sft": Pod.kill, "dpo": self.lost, "grpo": Pod.kill}
        self.acts = {stage: Disturbed(self.storage, stage, Pod.delete, seconds[stage]) for stage in TUNED}
        self.done = succeed(cluster, client.again(execution), self.watch)
        self.code = self.lost.end()

    def watch(self, pod: Pod) -> None:
        if pod.task in self.acts:
            self.acts[pod.task](pod)

    def metrics(self, stage: str) -> list[dict[str, Any]]:
        return recorded(self.storage, training(self.storage, stage))


@pytest.fixture(scope="module")
def tuned(tracked: Cluster, client: Client, mlflow: Server) -> Tuned:
    return Tuned(tracked, client, mlflow)


def test_what_is_made_is_the_same(tuned: Tuned) -> None:
    assert digests(tuned.storage) == tuned.before


@pytest.mark.parametrize("stage", TUNED)
def test_each_pod_continues_at_the_newest_checkpoint_in_storage(tuned: Tuned, stage: str) -> None:
    assert [each.attempt for each in tuned.done.of(stage)] == [0, 1, 2]
    acts, steps = tuned.acts[stage], tuned.metrics(stage)
    for stored, when in zip(acts.steps, acts.when, strict=True):
        assert max(line["step"] for line in steps if line["time"] < when) >= stored
    assert all(one["step"] + 1 == two["step"] for one, two in pairwise(steps))  # the metrics have no gap


@pytest.mark.parametrize("stage", TUNED)
def test_a_trainer_that_is_asked_to_end_saves_what_it_has_within_30_s(tuned: Tuned, stage: str) -> None:
    first, *_ = tuned.done.of(stage)
    assert first.asked.pod["terminationGracePeriodSeconds"] == 30
    assert tuned.acts[stage].saved[0] > tuned.acts[stage].steps[0]


def test_a_lost_pod_and_its_retry_leave_one_whole_result(tuned: Tuned) -> None:
    """Both pods continued the training at the same time."""
    assert tuned.code == 0
    assert whole(tuned.storage)


def test_a_killed_evaluation_continues(tracked: Cluster, client: Client, mlflow: Server) -> None:
    execution = submitted(client, mlflow, **MEASURED)
    succeed(tracked, execution)
    before = digests(tracked.storage, ["eval_report"])
    forget(tracked, "evaluate", "evaluate", "eval_report")
    kill = Disturbed(tracked.storage, "evaluate", Pod.kill)
    done = succeed(tracked, client.again(execution), kill)
    assert digests(tracked.storage, ["eval_report"]) == before
    assert len(done.of("evaluate")) == 2
    assert f"part-{kill.steps[0]:08}" in done.of("evaluate")[1].said

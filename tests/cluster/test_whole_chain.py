"""The entire chain, including vLLM and TRL, in pods that share nothing, with and without random kills."""

import random
import time
from dataclasses import dataclass, replace
from typing import Any

import mlflow as mlflow_client
import pytest

from tests.cluster.catalog import Catalog
from tests.cluster.chain import (
    BASE,
    CORPUS,
    TUNED,
    TUNING,
    baton,
    digests,
    recorded,
    saved_step,
    steps_on_disk,
    stored_step,
    submit,
    training,
)
from tests.cluster.client import Client
from tests.cluster.pod import Pod
from tests.cluster.propeller import Cluster, Done
from tests.cluster.storage import Storage
from tests.tracking.conftest import Server
from tests.workflows.test_five_days import RECIPE
from tests.workflows.test_pretrain_to_rl import LABELS, STAGES, TINY

pytestmark = pytest.mark.slow

RECIPE_OF_ALL = TINY | {"corpus": CORPUS, "pretrain": BASE["pretrain"]} | TUNING
EVERY_OF = {"pretrain": BASE["pretrain"]["checkpoints"]["every"]} | {
    stage: spec["checkpoint_every"] for stage, spec in TUNED.items()
}
KILLS, SEED = 30, 15
KILLED_WITHIN_S = 20.0  # seconds after a pod's start


@pytest.fixture(scope="module")
def submitted(tracked: Cluster, client: Client, mlflow: Server) -> Any:
    return submit(client, RECIPE_OF_ALL, MLFLOW_TRACKING_URI=mlflow.uri)


@pytest.fixture(scope="module")
def run(tracked: Cluster, submitted: Any) -> Done:
    done = tracked.execute(submitted)
    assert done.failed is None, done.why()
    return done


def test_every_stage_runs_once(run: Done, mlflow: Server) -> None:
    assert len(run.ran) == 1 + len(STAGES) + len(LABELS) + 1  # the dynamic workflow and the report
    assert mlflow_client.MlflowClient(mlflow.uri).get_model_version("tiny", "1").status == "READY"


@dataclass(frozen=True)
class Killed:
    """A training pod at the moment when it was killed."""

    stage: str
    when: float  # seconds since the epoch
    reached: int  # its last step
    saved: int  # step of its last checkpoint
    stored: int  # step of its last checkpoint in storage


class AtRandom:
    """Kills pods some time after their start. The third attempt at a task is spared, since there is no fourth."""

    def __init__(self, storage: Storage, chance: random.Random, left: int) -> None:
        self.storage, self.chance, self.left = storage, chance, left
        self.trainings: list[Killed] = []

    def __call__(self, pod: Pod) -> None:
        if pod.attempt >= 2 or self.chance.random() < 0.4:
            return
        patient = pod.task in EVERY_OF and self.chance.random() < 0.7
        while patient and pod.alive() and not steps_on_disk(pod):
            time.sleep(0.5)  # lets most trainings have something to lose, even on a slow machine
        time.sleep(self.chance.uniform(0, KILLED_WITHIN_S))
        if pod.alive() and self.left:
            self.left -= 1
            pod.pause()
            if pod.task in EVERY_OF and (lines := steps_on_disk(pod)):
                saved, stored = saved_step(pod), stored_step(self.storage, pod.task)
                self.trainings.append(Killed(pod.task, time.time(), max(lines), saved, stored))
            pod.kill()

    def check(self) -> None:
        """Check that no pod repeated more than one interval, or two if a checkpoint was being uploaded."""
        for killed in self.trainings:
            made = training(self.storage, killed.stage)
            steps = [line["step"] for line in recorded(self.storage, made) if line["time"] < killed.when]
            continued, every = max(steps, default=0), EVERY_OF[killed.stage]
            print(f"{killed}: continued behind step {continued}")
            assert continued >= killed.stored
            assert killed.saved - killed.stored <= every
            assert killed.reached - killed.saved <= every
        self.trainings.clear()


@pytest.mark.timeout(3 * 3600)  # runs the chain several times, with up to three attempts per pod
def test_pods_killed_at_random_change_no_digest_and_cost_one_checkpoint_interval_each(
    tracked: Cluster, client: Client, run: Done, submitted: Any
) -> None:
    before, kill = digests(tracked.storage), AtRandom(tracked.storage, random.Random(SEED), KILLS)
    in_training = 0
    while kill.left:
        tracked.storage.remove(baton(tracked.storage))
        anew = replace(tracked, catalog=Catalog())
        done = anew.execute(client.again(submitted), kill)
        assert done.failed is None, done.why()
        assert digests(tracked.storage) == before
        in_training += len(kill.trainings)
        kill.check()
        print(f"{KILLS - kill.left} of {KILLS} pods killed, {in_training} of them in training")
    assert in_training


def test_a_champion_is_made_and_a_day_without_new_text_changes_nothing(
    tracked: Cluster, client: Client, mlflow: Server
) -> None:
    recipe = RECIPE | {"name": "cycles", "corpus": CORPUS, "publish": {"name": "cycles"}}
    for day in range(2):
        execution = submit(client, recipe, workflow="continuous.continue_training", MLFLOW_TRACKING_URI=mlflow.uri)
        done = tracked.execute(execution)
        assert done.failed is None, done.why()
        assert ("train" in done.made()) == (day == 0)
    (version,) = mlflow_client.MlflowClient(mlflow.uri).search_model_versions("name = 'cycles'")
    assert version.status == "READY"

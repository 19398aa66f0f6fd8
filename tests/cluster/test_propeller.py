"""The tests' propeller itself, with tiny workflows that do not use Baton."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal

from tests.cluster.attempt import BUILT_IN, Asked, clamped
from tests.cluster.client import DOMAIN, PROJECT, Client
from tests.cluster.conftest import TASK_RESOURCES as CLUSTER
from tests.cluster.pod import Pod, can_be_alone
from tests.cluster.propeller import Cluster, Done
from tests.source import ROOT

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).with_name("examples") / "examples.py"


@pytest.fixture(scope="module")
def registered(client: Client) -> Client:
    client.register(EXAMPLES)
    return client


def value(done: Done, python_type: Any) -> Any:
    """Return the only output of an execution."""
    assert done.outputs is not None, done.why()
    (literal,) = done.outputs.literals.values()
    context = FlyteContextManager.current_context()
    return TypeEngine.to_python_value(context, Literal.from_flyte_idl(literal), python_type)


def test_dynamics_in_dynamics_with_optional_inputs(cluster: Cluster, registered: Client) -> None:
    done = cluster.execute(registered.start("a_nested_dynamic", count=2))
    assert value(done, int) == 0 + 1 + 4 + 100
    assert {(each.node, each.task) for each in done.ran} == {
        ("n0", "nested"),
        ("n0-0-dn0", "squares"),
        *((f"n0-0-dn0-0-dn{n}", "square") for n in range(2)),
        ("n0-0-dn0-0-dn2", "total"),
        ("n0-0-dn1", "square"),
        ("n0-0-dn2", "total"),
    }


class AtOnce:
    """Counts the pods that run at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, pod: Pod) -> None:
        self._count(1)
        pod.process.wait()
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self.now += change
            self.most = max(self.most, self.now)


def test_two_pods_at_a_time_share_storage_and_nothing_else(cluster: Cluster, registered: Client) -> None:
    at_once = AtOnce()
    done = cluster.execute(registered.start("a_list_of_folders", first="share", second="nothing"), at_once)
    assert value(done, str) == "share nothing"
    assert [uri for uri in cluster.storage.list(f"{cluster.storage.root}/raw") if uri.endswith("word.txt")]
    assert at_once.most == 2


def test_a_killed_pod_is_retried_and_finds_its_checkpoint(cluster: Cluster, registered: Client) -> None:
    def kill(pod: Pod) -> None:
        log = pod.log
        while pod.alive() and pod.attempt == 0:
            if "counted" in log.read_text():
                pod.kill()
            time.sleep(0.05)

    done = cluster.execute(registered.start("a_count", to=5), kill)
    assert value(done, int) == 5
    first, second = done.of("counting")
    assert first.failed and first.failed.system and "exit code (137)" in str(first.failed)
    assert second.failed is None


def test_three_lost_pods_are_enough(cluster: Cluster, registered: Client) -> None:
    done = cluster.execute(registered.start("a_count", to=5), lambda pod: pod.kill())
    assert len(done.of("counting")) == 3 and done.failed and done.failed.system


@pytest.mark.parametrize(("recoverable", "attempts"), [(False, 1), (True, 2)])
def test_a_user_s_error_is_retried_where_it_is_recoverable(
    cluster: Cluster, registered: Client, recoverable: bool, attempts: int
) -> None:
    done = cluster.execute(registered.start("a_refusal", recoverable=recoverable))
    assert len(done.of("refusing")) == attempts
    assert ("not now" if recoverable else "ValueError: never") in str(done.failed)


def test_a_promised_hash_counts_in_the_catalog_and_a_constant_s_is_lost(cluster: Cluster, registered: Client) -> None:
    def ran(workflow: str, text: str, how: str) -> bool:
        done = cluster.execute(registered.start(workflow, text=text, how=how))
        assert done.failed is None, done.why()
        return "shouted" in done.made()

    assert ran("of_a_promise", "abc", "here")
    assert not ran("of_a_promise", "xyz", "there")  # the texts have the same length, and `how` is ignored
    assert ran("of_a_constant", "abc", "here")
    assert not ran("of_a_constant", "abc", "there")
    assert ran("of_a_constant", "xyz", "here")


@pytest.fixture(scope="module")
def seen(cluster: Cluster, registered: Client) -> Done:
    return replace(cluster, secrets={"WORD": "hush", "OTHER": "no"}).execute(registered.start("a_look"))


def test_a_pod_has_only_a_pod_s_environment(cluster: Cluster, seen: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    found = value(seen, dict[str, str])
    flyte = {name: each for name, each in found.items() if name.startswith("FLYTE_INTERNAL_EXECUTION")}
    assert flyte == {
        "FLYTE_INTERNAL_EXECUTION_ID": seen.name,
        "FLYTE_INTERNAL_EXECUTION_PROJECT": PROJECT,
        "FLYTE_INTERNAL_EXECUTION_DOMAIN": DOMAIN,
        "FLYTE_INTERNAL_EXECUTION_WORKFLOW": f"{PROJECT}:{DOMAIN}:examples.a_look",
    }
    assert found["FLYTE_AWS_ENDPOINT"] == cluster.storage.for_pods
    assert "BATON_HOME" not in found and "PYTEST_CURRENT_TEST" not in found


def test_a_pod_has_the_secrets_that_its_task_names(seen: Done) -> None:
    found = value(seen, dict[str, str])
    assert {name: each for name, each in found.items() if name.startswith(("_FSEC", "SECRET"))} == {
        "_FSEC_TESTS_WORD": "hush",
        "SECRET_WORD": "hush",
    }


@pytest.mark.skipif(not can_be_alone(), reason="takes root and namespaces; without them pods only have fresh folders")
def test_a_pod_sees_no_files_of_this_machine_s(seen: Done) -> None:
    found = value(seen, dict[str, str])
    assert not Path(found["here"]).exists()
    at_the_code = {str(folder) for folder in (ROOT, *ROOT.parents)}  # .venv is in the checkout
    assert len({*found["files"].split()} - at_the_code) <= 2  # the pod's own parent folder and its network's sockets


def test_what_a_node_asks_of_the_cluster_can_be_seen(seen: Done) -> None:
    (looking,) = seen.of("looking")
    memory, cpu = {"memory": "2Gi"}, CLUSTER["defaults"]["cpu"]
    assert looking.asked.limits == {**memory, "cpu": cpu} == looking.asked.requests
    assert (looking.asked.retries, looking.asked.interruptible) == (4, True)


def asked_for(**limits: str) -> Asked:
    return Asked("", (), {}, limits, limits, 0, 0, False, None, {}, ())


def test_flyte_s_own_limits_clamp_what_a_pod_asks_for() -> None:
    """This is the behavior of ApplyResourceOverrides in flyteplugins 1.16.8, with the limits that an operator did not
    set."""
    got = clamped(asked_for(cpu="16", memory="4Gi", gpu="8", ephemeral_storage="500Gi"), BUILT_IN)
    assert got.limits == got.requests == {"cpu": "2", "memory": "1Gi", "gpu": "1", "ephemeral_storage": "500Gi"}
    assert clamped(asked_for(), BUILT_IN).limits == {"cpu": "2", "memory": "200Mi"}
    assert clamped(asked_for(memory="512Mi"), BUILT_IN).limits == {"cpu": "2", "memory": "512Mi"}

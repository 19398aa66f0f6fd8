"""A service that follows the champion, with a real registry, real processes, and clients under constant load."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import httpx
import psutil
import pytest

from baton.tasks.core.manifest import write_manifest
from baton.tasks.publish.aliases import Version
from baton.tasks.publish.champion import promote, roll_back
from baton.tasks.serve.active import Active
from baton.tasks.serve.follow import Follower
from baton.tasks.serve.switch import Backend, Switch
from tests.processes import commands
from tests.serve.follow_small import HEALTH_S
from tests.serve.followed import NAME, Service, awaited, digest_of, publish, service, small_model, under_load
from tests.tracking.conftest import Server, empty_store, free_port  # noqa: F401 - a fixture

NOTICED_S = 3.0  # the limit on a busy machine


def published(folder: Path, files: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Write a published model's folder with these files."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    write_manifest(folder, "published_model", {"label": "sft"})
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Path]:  # noqa: F811
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        shutil.copy(empty_store, home / "mlflow.db")
        patch.setenv("BATON_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield home


@pytest.fixture(scope="module")
def models(home: Path) -> dict[str, Path]:
    behaviours = {"first": "", "second": "", "ill": "never healthy", "dead": "dies", "wrong": "answers wrongly"}
    return {name: small_model(home / name, behaviour) for name, behaviour in behaviours.items()}


@pytest.fixture(scope="module")
def versions(models: dict[str, Path]) -> dict[str, int]:
    return {name: publish(model) for name, model in models.items()}


@pytest.fixture(scope="module")
def followed(home: Path, versions: dict[str, int]) -> Iterator[Service]:
    with service(home) as found:
        yield found


def test_before_there_is_a_champion_requests_get_503(followed: Service) -> None:
    answer = httpx.post(f"{followed.url}/v1/completions", json={"model": NAME})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert httpx.get(f"{followed.url}/healthz").status_code == 503


def test_a_champion_moves_under_sixteen_clients_and_no_request_fails(
    followed: Service, models: dict[str, Path], versions: dict[str, int]
) -> None:
    promote(NAME, versions["first"], None)
    followed.serves(versions["first"])

    def steps() -> None:
        promote(NAME, versions["second"], versions["first"])
        followed.serves(versions["second"])
        for name in ("ill", "dead", "wrong"):
            promote(NAME, versions[name], versions["second"])
            status = followed.wait(lambda status: bool(status["refused"]), 20)
            assert (status["refused"]["version"], status["serving"]["version"]) == (versions[name], versions["second"])
            roll_back(NAME)
            followed.wait(lambda status: status["refused"] is None, 20)
        promote(NAME, versions["first"], versions["second"])
        followed.serves(versions["first"])

    answers = under_load(followed.url, steps)
    assert [answer.failure for answer in answers if answer.failure] == []
    assert {answer.header_digest for answer in answers} == {digest_of(models[name]) for name in ("first", "second")}
    assert all(answer.header_digest == answer.body_digest for answer in answers)
    assert len(answers) > 100


def test_a_response_is_finished_by_the_model_that_began_it(
    followed: Service, models: dict[str, Path], versions: dict[str, int]
) -> None:
    asked = {"model": NAME, "prompt": "def", "max_tokens": 150, "stream": True}
    with httpx.stream("POST", f"{followed.url}/v1/completions", json=asked) as answer:
        parts = answer.iter_lines()
        next(parts)
        promote(NAME, versions["second"], versions["first"])
        followed.serves(versions["second"])
        assert answer.headers["x-baton-model"] == digest_of(models["first"])
        assert list(parts)[-2:] == ["data: [DONE]", ""]


def servers(followed: Service) -> list[psutil.Process]:
    running = commands(followed.family())
    return [process for process, command in running.items() if "tests.serve.small_server" in command]


@pytest.fixture
def server_of_the_second(followed: Service, versions: dict[str, int]) -> psutil.Process:
    followed.serves(versions["second"])
    awaited(lambda: len(servers(followed)) == 1, 20, followed.log)  # waits until the previous server has ended
    return servers(followed)[0]


def test_a_server_that_dies_is_restarted(
    followed: Service, server_of_the_second: psutil.Process, versions: dict[str, int]
) -> None:
    server_of_the_second.kill()
    followed.wait(lambda status: status["serving"] is None, 10)
    followed.serves(versions["second"])


def test_a_server_that_hangs_is_replaced_and_its_requests_get_an_error(
    followed: Service, server_of_the_second: psutil.Process, versions: dict[str, int]
) -> None:
    server_of_the_second.suspend()
    begun = time.monotonic()
    answer = httpx.post(f"{followed.url}/v1/completions", json={"model": NAME, "prompt": "def"}, timeout=60)
    assert answer.status_code == 502
    assert time.monotonic() - begun < HEALTH_S + NOTICED_S
    status = followed.wait(lambda status: bool(status["serving"] or status["restarting"]), 5)
    followed.serves(versions["second"])
    assert status["restarting"] is None or "has not been healthy" in status["restarting"]["why"]
    assert not server_of_the_second.is_running()


def test_a_service_that_was_suspended_keeps_its_healthy_server(
    followed: Service, server_of_the_second: psutil.Process
) -> None:
    followed.process.send_signal(signal.SIGSTOP)
    time.sleep(HEALTH_S + 1)
    followed.process.send_signal(signal.SIGCONT)
    time.sleep(1)
    assert servers(followed) == [server_of_the_second]


def test_a_server_that_dies_while_another_version_loads_is_restarted_at_once(
    followed: Service, server_of_the_second: psutil.Process, versions: dict[str, int]
) -> None:
    promote(NAME, versions["ill"], versions["second"])
    try:
        followed.wait(lambda status: bool(status["coming"]), 10)
        server_of_the_second.kill()
        status = followed.wait(lambda status: bool(status["restarting"]), 10)
        assert status["serving"] is None
        followed.serves(versions["second"])
    finally:
        roll_back(NAME)
    followed.wait(lambda status: status["coming"] is None and status["refused"] is None, 20)


def test_without_an_alias_the_last_champion_keeps_serving(
    followed: Service, home: Path, versions: dict[str, int]
) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    client.delete_registered_model_alias(NAME, "champion")
    awaited(lambda: "has no champion" in followed.log.read_text(), 10, followed.log)
    assert followed.baton()["serving"]["version"] == versions["second"]
    client.set_registered_model_alias(NAME, "champion", str(versions["second"]))


def test_a_version_that_the_alias_has_left_is_cancelled_while_it_starts(
    followed: Service, versions: dict[str, int]
) -> None:
    promote(NAME, versions["ill"], versions["second"])
    followed.wait(lambda status: bool(status["coming"]), 10)
    roll_back(NAME)
    status = followed.wait(lambda status: status["coming"] is None, 10)
    assert (status["refused"], status["serving"]["version"]) == (None, versions["second"])
    assert "got no request: champion has moved on" in followed.log.read_text()


def test_sigterm_finishes_responses_and_leaves_no_process(followed: Service) -> None:
    family = followed.family()
    lines: list[str] = []

    def stream() -> None:
        asked = {"model": NAME, "prompt": "def", "max_tokens": 100, "stream": True}
        with httpx.stream("POST", f"{followed.url}/v1/completions", json=asked) as answer:
            lines.extend(answer.iter_lines())

    client = threading.Thread(target=stream)
    client.start()
    followed.wait(lambda status: status["serving"]["requests"] == 1, 5)
    followed.process.send_signal(signal.SIGTERM)
    assert followed.process.wait(30) == 0
    client.join()
    assert lines[-2] == "data: [DONE]"
    assert psutil.wait_procs(family, timeout=1)[1] == []


@pytest.mark.long
def test_a_server_that_dies_while_the_registry_hangs_is_restarted(
    home: Path,
    empty_store: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model's files were downloaded from that registry, and are on this disk."""
    shutil.copy(empty_store, tmp_path / "server.db")
    registry = Server(tmp_path / "server.db", free_port())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.uri)
    registry.start()
    try:
        version = publish(small_model(tmp_path / "model"))
        shutil.rmtree(tmp_path / "model")
        promote(NAME, version, None)
        with service(home) as found:
            found.serves(version, 60)
            assert registry.process
            os.killpg(registry.process.pid, signal.SIGSTOP)
            servers(found)[0].kill()
            found.wait(lambda status: status["serving"] is None, 5)
            found.serves(version, 10)
            assert registry.process.poll() is None
    finally:
        registry.kill()


def test_a_replacement_gets_the_files_of_the_version_that_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version may have the model that was already serving, and the previous version's files may be gone."""
    one, two = (Version(NAME, number, "same model", f"card {number}", "", {}) for number in (1, 2))
    backend = Backend("http://127.0.0.1:1", one.digest, one.version)
    active = Active(Switch(), start=lambda _: pytest.fail("is started"), health_s=1, drain_s=1, backend=backend)
    follower = Follower(NAME, "champion", 1, active)
    monkeypatch.setattr("baton.tasks.serve.follow.version_at", lambda *_, **__: two)
    monkeypatch.setattr("baton.tasks.serve.follow.fetch", lambda version: published(tmp_path / version.content))
    follower.serving = one
    follower._update(threading.Event())
    assert backend.version == 2
    assert active._model and active._model().directory == tmp_path / "card 2"


def test_a_version_with_the_number_of_another_is_not_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered model that was deleted and created again starts at version 1, and so does a new registry."""
    before, after = (Version(NAME, 1, model, f"{model} and its card", "", {}) for model in ("old", "new"))
    active = Active(Switch(), start=lambda _: pytest.fail("is started"), health_s=1, drain_s=1)
    follower = Follower(NAME, "champion", 1, active)
    tried: list[Version] = []
    kept: list[set[str]] = []

    def remove(name: str, but: set[str]) -> list[str]:
        kept.append(but)
        return []

    monkeypatch.setattr("baton.tasks.serve.follow.remove_fetched", remove)
    monkeypatch.setattr("baton.tasks.serve.follow.version_at", lambda *_, **__: after)
    monkeypatch.setattr(follower, "_switch_to", lambda version, stopping: tried.append(version))
    follower.serving = before
    follower._update(threading.Event())
    # the models whose downloads are kept, before and after the switch
    assert kept == [{before.content, after.content}] * 2
    follower.refused = before
    follower._update(threading.Event())
    assert tried == [after, after]
    assert follower._moved_from(before, threading.Event()) and not follower._moved_from(after, threading.Event())


def test_a_followed_adapter_is_opened_with_the_base_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = Version(NAME, 1, "model", "card", "", {})
    folder = published(tmp_path / "adapter", {"adapter_config.json": '{"r": 8}'})
    monkeypatch.setattr("baton.tasks.serve.follow.fetch", lambda _: folder)
    follower = Follower(
        NAME, "champion", 1, Active(Switch(), lambda _: pytest.fail("is started"), health_s=1, drain_s=1)
    )
    assert follower._model(version).files.weights == folder / "base"


def test_a_model_that_is_not_registered_is_reported(home: Path) -> None:
    active = Active(Switch(), start=lambda _: pytest.fail("is started"), health_s=1, drain_s=1)
    follower = Follower("codr", "champion", 1, active)
    follower._update(threading.Event())
    assert follower.last_message == "codr is not a registered model, so no version keeps serving"

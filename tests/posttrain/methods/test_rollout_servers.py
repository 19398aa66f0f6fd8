"""GRPO with rollout servers on separate machines."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path

import pytest

from baton.infra.process.heartbeat import read_beats
from baton.tasks.posttrain.methods.grpo import rollout_listener
from baton.tasks.posttrain.methods.grpo.rollout_servers import RENDEZVOUS, RolloutServerLost, RolloutServers
from tests.posttrain.tiny import metrics, repeated_words, reward, tiny_model, tiny_rows, write_job

STEPS = 6
# bytes from clients that do not know the protocol: nothing, a part, HTTP (a length of 1.2 GB), a length of 2^64, a
# wrong answer
SCANS = [b"", b"\x00", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 12, b"\x00\x00\x00\x10" + b"x" * 16]


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_a_server_that_is_killed_is_an_error_and_the_stage_continues_with_a_new_one(tmp_path: Path) -> None:
    rows = tiny_rows(tmp_path / "rows", repeated_words(30), "prompt_completion")
    spec = {
        "data": "twice",
        "steps": STEPS,
        "batch_size": 8,
        "generations": 4,
        "warmup_steps": 1,
        "max_new_tokens": 8,
        "checkpoint_every": 1,
        "rewards": [reward(tmp_path / "rewards", "near")],
        "layout": {"sharding": "ddp"},
        "rollout_servers": {"nodes": 1},
    }
    job = write_job(tmp_path / "job", "grpo", spec, model=tiny_model(tmp_path / "model"), rows=rows)
    with socket.create_server(("127.0.0.1", 0)) as server:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1]), "HF_HUB_OFFLINE": "1"}
    launchers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.posttrain.launcher", str(job), "1", "1"],
            env=os.environ | meeting | {"NODE_RANK": str(node)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in (0, 1)
    ]
    try:
        while not any(line["step"] >= 2 for line in metrics(job)):
            assert all(launcher.poll() is None for launcher in launchers), (job / "log.txt").read_text()[-3000:]
            time.sleep(0.02)
        node = read_beats(job, [1])[1].pid
        (engine,) = Path(f"/proc/{node}/task/{node}/children").read_text().split()
        os.kill(int(engine), signal.SIGKILL)
        output = [launcher.communicate()[1] for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.terminate()

    assert [launcher.returncode for launcher in launchers] == [0, 0], output
    assert any("rollout server 1-0 ended" in words and "restart 1 of 1" in words for words in output), output
    assert "restart 1 of 1" in output[0]
    assert [line["step"] for line in metrics(job)] == list(range(STEPS + 1))
    assert all(line["rollout_mismatch"] < 1.05 for line in metrics(job)[1:])
    assert not (job / "work" / RENDEZVOUS).exists()


def test_only_who_knows_the_token_can_connect(tmp_path: Path) -> None:
    with RolloutServers(tmp_path, 1, timeout_s=1):
        file = tmp_path / "work" / RENDEZVOUS
        where = json.loads(file.read_text())
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert where["address"] == "127.0.0.1"
        with pytest.raises(AuthenticationError), RolloutServers(tmp_path / "other", 1, timeout_s=1) as others:
            Client(("127.0.0.1", others.listener.port), authkey=bytes.fromhex(where["token"]))
    assert not file.exists()


def test_a_port_scan_keeps_no_engine_from_connecting(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Clients that send nothing do not prevent it either; the number of pending connections is limited."""
    with RolloutServers(tmp_path, 1, timeout_s=1) as servers, ExitStack() as stack:
        accepted = servers.listener.accepted
        for number in range(150):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", servers.listener.port)))
            client.sendall(SCANS[number % len(SCANS)])
        began = time.monotonic()
        engine = stack.enter_context(connected(tmp_path))
        assert accepted.get(timeout=5)
        assert time.monotonic() - began < 5
        assert threading.active_count() < 3 * rollout_listener.PENDING
        engine.send_bytes(b"")
    output = capfd.readouterr().err
    assert "was refused: it did not prove within 10 s that it knows their token" in output
    assert re.search(r"^\d+ connections to port \d+ were refused", output, re.MULTILINE)
    assert len(output.splitlines()) == 2


def test_who_does_not_prove_that_it_knows_the_token_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_listener, "HANDSHAKE_S", 0.5)
    with RolloutServers(tmp_path, 1, timeout_s=1) as servers, pytest.raises(OSError, match=r"reset|Broken pipe"):
        client = socket.create_connection(("127.0.0.1", servers.listener.port))
        for _ in range(100):  # single bytes
            client.sendall(b"\x00")
            time.sleep(0.05)


def test_an_engine_gives_up_on_a_port_that_is_another_s_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_listener, "HANDSHAKE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(rollout_listener.REFUSED):
        rollout_listener.connect("127.0.0.1", silent.getsockname()[1], b"token")


@pytest.mark.parametrize("stopped", ["before it reads", "within its answer"])
def test_an_engine_that_is_stopped_is_named(tmp_path: Path, stopped: str) -> None:
    with RolloutServers(tmp_path, 1, timeout_s=0.5) as servers, connected(tmp_path) as engine:
        engine.send_bytes(b'{"result": "0-1"}')
        servers._accept()
        if stopped == "within its answer":
            os.write(engine.fileno(), b"\x00\x00\x00\x99{")
        with pytest.raises(RolloutServerLost, match="rollout server 0-1 has been silent"):
            servers.sample([[1] * 2_000_000], [0])


def test_an_engine_that_is_gone_is_named_when_it_is_called(tmp_path: Path) -> None:
    with RolloutServers(tmp_path, 1, timeout_s=5) as servers:
        with connected(tmp_path) as engine:
            engine.send_bytes(b'{"result": "0-1"}')
            servers._accept()
        with pytest.raises(RolloutServerLost, match="rollout server 0-1 ended"):
            servers.sample([[1] * 2_000_000], [0])


def test_nobody_connects_once_all_engines_are_there(tmp_path: Path) -> None:
    with RolloutServers(tmp_path, 1, timeout_s=5) as servers, connected(tmp_path) as engine:
        engine.send_bytes(b'{"result": "0-1"}')
        servers._accept()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", servers.listener.port))


def connected(job: Path) -> Connection:
    """Connect to the server as an engine does."""
    where = json.loads((job / "work" / RENDEZVOUS).read_text())
    return rollout_listener.connect(where["address"], where["port"], bytes.fromhex(where["token"]))


def test_a_server_that_cannot_start_is_named_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "baton").mkdir()
    (tmp_path / "baton/__init__.py").touch()  # another package of this name, which is found first
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with RolloutServers(tmp_path, 1, timeout_s=1) as servers:
        servers.start(["0"], [])
        with pytest.raises(
            RolloutServerLost,
            match=r"rollout server 0 ended with exit code 1(.|\n)*cannot import name",
        ):
            servers.open(1, model="none")

"""The trainer's side of rollout servers, which are vLLM engines in separate processes, on other GPUs or machines.

Rank 0 listens, writes its address and a new token into a file that only its user can read, and starts the engines of
its machine; engines on other machines wait for the file (rollout_engine.py, started by each machine's helper). A peer
must prove that it knows the token (rollout_listener.py); the traffic is not encrypted, as in torch.distributed. Calls
are JSON; weights go through a separate process group (weight_transfer.py).

The loss of an engine is an error: the stage restarts from its newest checkpoint, with new engines.
"""

import json
import os
import queue
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from baton.infra.process.logs import end_of, tail
from baton.infra.process.process_group import start_group, stop_group
from baton.infra.storage.durable import replacement
from baton.tasks.posttrain.methods.grpo.rollout_listener import RolloutListener
from baton.tasks.vllm.tensor_digests import Held

LOCAL = "127.0.0.1"
OPEN_S = 1800.0  # seconds to start an engine and load its model
POLL_S = 0.5
DISCONNECT_S = 10.0  # seconds until the connection of a killed engine is closed
EXIT_S = 5.0  # seconds until an engine that has closed its connection has ended
RENDEZVOUS = "rollout-servers.json"
# Environment variables that torchrun sets for its processes
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "OMP_NUM_THREADS")


class RolloutServerLost(ConnectionError):
    """Raised if a rollout server died or hangs; the message has the end of its log."""


def start_engines(job_dir: Path, names: Sequence[str], gpus: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Start engines on this machine, which share `gpus`, if any, evenly. Each has its own log."""
    each = len(gpus) // len(names)
    return [_start(job_dir, name, gpus[n * each : (n + 1) * each]) for n, name in enumerate(names)]


def log_of(job_dir: Path, name: str) -> Path:
    return job_dir / f"log-rollouts-{name}.txt"


def ended(job_dir: Path, name: str, ending: str) -> str:
    """Describe how an engine has ended, with the end of its log."""
    log = log_of(job_dir, name)
    words = end_of(log).decode(errors="replace")
    return f"rollout server {name} {ending}. The end of {log.name}:\n{tail(words)}"


def stop(engines: Iterable[subprocess.Popen[bytes]]) -> None:
    """Kill the engines with all of their processes."""
    for engine in engines:
        stop_group(engine)


def _start(job_dir: Path, name: str, gpus: Sequence[str]) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(TORCHRUN)}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    command = [sys.executable, "-m", f"{__package__}.rollout_engine", str(job_dir / "work" / RENDEZVOUS), name]
    with log_of(job_dir, name).open("wb") as log:  # SIGTERM is for the trainer, which completes its step with them
        return start_group(command, log, environment)


class RolloutServers:
    """Engines that are connected to this process, as a context manager at whose end they stop."""

    def __init__(self, job_dir: Path, count: int, timeout_s: float, address: str = LOCAL) -> None:
        """Expect `count` engines to connect to `address` of this machine. An engine that is silent for `timeout_s`
        while it works counts as lost."""
        self.job_dir, self.count, self.timeout_s, self.address = job_dir, count, timeout_s, address
        self._interface = LOCAL if address == LOCAL else ""  # the address to listen on; "" for all
        self.alive: Callable[[], None] = lambda: None  # called at each sign of life of an engine
        self._local_engines: list[subprocess.Popen[bytes]] = []
        self._names: dict[Connection, str] = {}
        self._group: Any = None
        self._closing = ExitStack()

    def __enter__(self) -> "RolloutServers":
        token = secrets.token_bytes(32)
        self.listener = RolloutListener(self._interface, token)
        self._closing.callback(self.listener.close)
        where = {"address": self.address, "port": self.listener.port, "token": token.hex()}
        file = self.job_dir / "work" / RENDEZVOUS
        _write_private(file, json.dumps(where))
        self._closing.callback(file.unlink, missing_ok=True)
        return self

    def __exit__(self, *_: Any) -> None:
        for connection in self._names:
            connection.close()
        stop(self._local_engines)
        self._closing.close()

    def start(self, names: Sequence[str], gpus: Sequence[str]) -> None:
        """Start engines on this machine."""
        self._local_engines = start_engines(self.job_dir, names, gpus)

    def open(self, workers: int, **options: Any) -> None:
        """Wait for all engines, let them load the model, and open the process group for weights with `workers`
        processes of each. `options` are those of open_engine."""
        self._accept()
        from baton.tasks.vllm.weight_transfer import open_group

        self._call_all("open", OPEN_S, tensor_parallel=workers, **options)
        size, listening = 1 + workers * self.count, socket.create_server((self._interface, 0))
        joining = {"address": self.address, "port": listening.getsockname()[1], "size": size}
        for number, connection in enumerate(self._names):
            self._send(connection, "join", **joining, first_rank=1 + workers * number)
        self._group = open_group(**joining, rank=0, listening=listening)
        self._results(self._names, OPEN_S)

    def load(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Send these weights to the engines. Returns when all have loaded them and cleared their caches."""
        from baton.tasks.vllm.weight_transfer import send

        for connection in self._names:
            self._send(connection, "load")
        try:
            send(self._group, weights)
        except RuntimeError as error:  # raised by torch when a peer is gone
            self._raise_lost(error)
            self._results(self._names, DISCONNECT_S)  # raises, since the lost engine's connection is closed
            raise
        self._results(self._names, self.timeout_s)

    def held(self) -> dict[str, Held]:
        """Return digests of the weights that the engines hold; each engine must have one worker."""
        by_name: dict[str, Held] = {}
        for of_engine in self._call_all("held", self.timeout_s):
            for name, (dtype, digests) in of_engine.items():
                held = by_name.setdefault(name, Held(dtype, []))
                held.digests.extend(each for each in digests if each not in held.digests)
        return by_name

    def sample(
        self, prompts: Sequence[list[int]], seeds: Sequence[int], **options: Any
    ) -> list[tuple[list[int], list[float]]]:
        """Return token ids and log-probabilities of a completion of each prompt. Each engine samples a contiguous share
        as one batch; `options` are those of baton.tasks.vllm.engine.sample."""
        bounds = [len(prompts) * number // self.count for number in range(self.count + 1)]
        asked = []
        for connection, first, end in zip(self._names, bounds, bounds[1:], strict=False):
            if first < end:
                self._send(connection, "sample", prompts=prompts[first:end], seeds=seeds[first:end], **options)
                asked.append(connection)
        shares = self._results(asked, self.timeout_s)
        return [(ids, logprobs) for share in shares for ids, logprobs in share]

    def _accept(self) -> None:
        """Wait until all engines have connected, and then accept no other connections."""
        deadline = time.monotonic() + OPEN_S
        connections: dict[str, Connection] = {}
        while len(connections) < self.count:
            try:
                connection = self.listener.accepted.get(timeout=POLL_S)
                _limit(connection, self.timeout_s)
                connections[json.loads(connection.recv_bytes())["result"]] = connection
            except (EOFError, OSError):
                continue  # the engine is gone again, or has stopped
            except queue.Empty:
                self._raise_lost(None)
                if time.monotonic() > deadline:
                    connected = ", ".join(sorted(connections)) or "none"
                    raise RolloutServerLost(
                        f"{self.count} rollout servers should have connected to {self.address} within {OPEN_S:.0f} s; "
                        f"connected: {connected}"
                    ) from None
        self.listener.close()
        self._names = {connections[name]: name for name in sorted(connections)}

    def _call_all(self, call: str, timeout_s: float, **arguments: Any) -> list[Any]:
        for connection in self._names:
            self._send(connection, call, **arguments)
        return self._results(self._names, timeout_s)

    def _results(self, connections: Iterable[Connection], timeout_s: float) -> list[Any]:
        """Return the result of each connection, in order. Raises RolloutServerLost."""
        ordered = list(connections)
        results: dict[Connection, Any] = {}
        heard = dict.fromkeys(ordered, time.monotonic())
        while pending := [connection for connection in ordered if connection not in results]:
            for connection in wait(pending, POLL_S):
                assert isinstance(connection, Connection)
                heard[connection] = time.monotonic()
                try:
                    message = json.loads(connection.recv_bytes())
                except (EOFError, OSError) as error:
                    raise self._lost(connection, error, self.timeout_s) from error
                if "result" in message:
                    results[connection] = message["result"]
                self.alive()
            for connection in pending:
                if time.monotonic() > heard[connection] + timeout_s:
                    raise self._lost(connection, None, timeout_s)
        return [results[connection] for connection in ordered]

    def _send(self, connection: Connection, call: str, **arguments: Any) -> None:
        """Send a call. Raises RolloutServerLost."""
        try:
            connection.send_bytes(json.dumps({"call": call, **arguments}).encode())
        except OSError as error:
            raise self._lost(connection, error, self.timeout_s) from error

    def _lost(self, connection: Connection, error: Exception | None, silent_s: float) -> RolloutServerLost:
        """Return the error for a lost engine. `error`: that of its connection, if any."""
        silent = error is None or isinstance(error, BlockingIOError)  # the time limit of `_limit` has passed
        name = self._names[connection]
        ending = f"has been silent for {silent_s:.0f} s" if silent else f"ended{self._exit_code(name)}"
        return RolloutServerLost(ended(self.job_dir, name, ending))

    def _exit_code(self, name: str) -> str:
        """Return the exit code of an engine that has closed its connection, in words; empty for another machine's."""
        for number, engine in enumerate(self._local_engines):
            if str(number) == name:
                with suppress(subprocess.TimeoutExpired):
                    return f" with exit code {engine.wait(EXIT_S)}"
        return ""

    def _raise_lost(self, cause: BaseException | None) -> None:
        """Raise RolloutServerLost if an engine of this machine has ended."""
        for number, engine in enumerate(self._local_engines):
            if (code := engine.poll()) is not None:
                raise RolloutServerLost(ended(self.job_dir, str(number), f"ended with exit code {code}")) from cause


def _limit(connection: Connection, timeout_s: float) -> None:
    """Let a read or write within a message raise BlockingIOError when no data moves for `timeout_s`. Without this, the
    trainer would wait forever for an engine that is stopped within a message."""
    limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _write_private(path: Path, text: str) -> None:
    """Replace a file with one that only this user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacement(path, synced=False) as partial:
        partial.touch(mode=0o600, exist_ok=False)
        partial.write_text(text)

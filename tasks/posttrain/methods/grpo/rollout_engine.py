"""A vLLM engine in a separate process, which samples for a trainer.

    python -m baton.tasks.posttrain.methods.grpo.rollout_engine RENDEZVOUS NAME

RENDEZVOUS is the file with the address on which the trainer listens (rollout_servers.py). The engine connects, proves
that it knows the file's token, and answers the calls open, join, load and sample, each a JSON object, until the trainer
closes the connection. vLLM's HTTP server is not used: it schedules requests as they arrive, so that the composition of
its batches, and on most kernels the last bits of the logits, differ from run to run; here each call is one batch. Its
routes that change weights also require no key.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from baton.infra.paths import quiet
from baton.infra.process.parent_watchdog import end_with_launcher
from baton.tasks.posttrain.methods.grpo import rollout_listener
from baton.tasks.vllm.engine import ON_GPU, open_engine, sample
from baton.tasks.vllm.hooks import before_each_step
from baton.tasks.vllm.tensor_digests import Held

GRACE_S = 10.0
RETRY_S = 0.5
ALIVE_EVERY_S = 1.0  # seconds between two signs of life
EXTENSION = "baton.tasks.vllm.weight_transfer.Receiver"


class RolloutEngine:
    """The methods that a trainer calls."""

    def __init__(self, alive: Callable[[], None]) -> None:
        self.alive = alive

    def open(self, model: str, tensor_parallel: int, **options: Any) -> None:
        if ON_GPU:
            options["tensor_parallel_size"] = tensor_parallel
        self.llm = open_engine(Path(model), whole_prompts=not ON_GPU, worker_extension_cls=EXTENSION, **options)
        before_each_step(self.llm, self.alive)

    def join(self, **group: Any) -> None:
        self.llm.collective_rpc("join_transfer", kwargs=group)

    def load(self) -> None:
        self.llm.collective_rpc("receive_weights")
        self.llm.reset_prefix_cache()

    def held(self) -> dict[str, Held]:
        """Return digests of the weights in the engine's only worker."""
        (of_worker,) = self.llm.collective_rpc("held_weights")
        return dict(of_worker)

    def sample(self, prompts: list[list[int]], **options: Any) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Return the token ids and log-probabilities of each completion."""
        return [(one.token_ids, one.logprobs) for one in sample(self.llm, prompts, **options)]


def connect(rendezvous: Path) -> Connection:
    """Connect to the trainer, retrying: it may not listen yet, and the file may be from an earlier start."""
    while True:
        try:
            where = json.loads(rendezvous.read_text())
            return rollout_listener.connect(where["address"], where["port"], bytes.fromhex(where["token"]))
        except (*rollout_listener.REFUSED, json.JSONDecodeError):
            time.sleep(RETRY_S)


def answer(connection: Connection) -> bool:
    """Answer the trainer's calls until it closes the connection. Return whether there was any call."""
    last_sent, called = time.monotonic(), False

    def alive() -> None:
        nonlocal last_sent
        if time.monotonic() > last_sent + ALIVE_EVERY_S:
            last_sent = time.monotonic()
            connection.send_bytes(b'{"alive": true}')

    engine = RolloutEngine(alive)
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            return called
        called = True
        result = getattr(engine, request.pop("call"))(**request)
        connection.send_bytes(json.dumps({"result": result}).encode())


def main() -> None:
    quiet()
    end_with_launcher(GRACE_S)
    called = False
    while not called:  # a connection without calls was closed for another (rollout_listener.py)
        with connect(Path(sys.argv[1])) as connection:
            with suppress(ConnectionError):  # a lost connection is noticed when it is read
                connection.send_bytes(json.dumps({"result": sys.argv[2]}).encode())
            called = answer(connection)


if __name__ == "__main__":
    main()

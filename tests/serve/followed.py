"""A service that follows a registered model, as a subprocess, and clients that check every response."""

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from tokenizers import Tokenizer, models

from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.publish.registry import Publication, register
from tests.source import ROOT

NAME, CLIENTS = "coder", 16
SMALL = ("tests.serve.follow_small", NAME)
REAL = ("baton.tasks.serve", "--follow", NAME, "--port", "0", "--every", "1")


def small_model(directory: Path, behaviour: str = "") -> Path:
    """Write a model directory for the small server, which contains only its name, its `behaviour` and a tokenizer."""
    directory.mkdir()
    (directory / "behaviour").write_text(behaviour)
    (directory / "name").write_text(directory.name)
    Tokenizer(models.WordLevel({"?": 0}, unk_token="?")).save(str(directory / "tokenizer.json"))
    write_manifest(directory, "hf_model", {"label": "small"})
    return directory


def digest_of(model: Path) -> str:
    return read_manifest(model).digest


def publish(model: Path) -> int:
    """Register the model, and return the version."""
    digest = digest_of(model)
    what = Publication(NAME, None, model, digest, "", {"baton.model": digest, "baton.label": "small"})
    return int(register(what, waiting=lambda waited: None))


@dataclass
class Service:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def baton(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.url}/baton", trust_env=False).json())

    def wait(self, until: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
        """Wait for a status, and return it."""
        found: dict[str, Any] = awaited(lambda: status if until(status := self.baton()) else None, timeout_s, self.log)
        return found

    def serves(self, version: int, timeout_s: float = 20) -> None:
        self.wait(lambda status: bool(status["serving"]) and status["serving"]["version"] == version, timeout_s)

    def family(self) -> list[psutil.Process]:
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]


@contextmanager
def service(home: Path, words: tuple[str, ...] = SMALL) -> Iterator[Service]:
    """Run the service, and check that none of its processes is left at the end."""
    log = home / "service.log"
    environment = os.environ | {"BATON_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=stream, stderr=stream
        )
    family: list[psutil.Process] = []
    try:
        url = awaited(lambda: re.search(r"(http://[\d.:]+)/v1", log.read_text()), 60, log).group(1)
        awaited(lambda: _answers(url), 30, log)
        found = Service(process, url, log)
        yield found
        if process.poll() is None:
            family = found.family()
    finally:
        process.terminate()
        process.wait(60)
    assert psutil.wait_procs(family, timeout=10)[1] == []


def awaited(look: Callable[[], Any], timeout_s: float, log: Path) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(log.read_text()[-5000:])


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/baton", trust_env=False).is_success
    except httpx.TransportError:
        return False


@dataclass(frozen=True)
class Answer:
    header_digest: str
    body_digest: str
    failure: str = ""


async def ask(client: httpx.AsyncClient, url: str, stream: bool) -> Answer:
    asked = {"model": NAME, "prompt": "def", "max_tokens": 12, "stream": stream}
    try:
        answer = await client.post(f"{url}/v1/completions", json=asked)
        if not answer.is_success:
            return Answer("", "", f"{answer.status_code}: {answer.text[:300]}")
        header, text = answer.headers["x-baton-model"], answer.text
        if stream:
            parts = [part.removeprefix("data: ") for part in text.strip().split("\n\n")]
            complete = parts.pop() == "[DONE]" and len(parts) >= 1
            models = {json.loads(part)["model"] for part in parts}
            return (
                Answer(header, *models)
                if complete and len(models) == 1
                else Answer(header, "", f"cut off: {text[-300:]}")
            )
        return Answer(header, answer.json()["model"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        return Answer("", "", repr(error))


def under_load(url: str, steps: Callable[[], None], pause_s: float = 0.0) -> list[Answer]:
    """Return all responses to 16 clients, half of them streaming, while `steps` runs. Each client sends a request
    `pause_s` after its last response."""

    async def one(number: int, ended: asyncio.Event) -> list[Answer]:
        found = []
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            for turn in itertools.count(number):
                last = ended.is_set()  # each client sends one more request to the last server
                found.append(await ask(client, url, stream=turn % 2 == 0))
                if last:
                    break
                await asyncio.sleep(pause_s)
        return found

    async def whole() -> list[list[Answer]]:
        ended = asyncio.Event()
        clients = [asyncio.create_task(one(number, ended)) for number in range(CLIENTS)]
        try:
            await asyncio.to_thread(steps)
        finally:
            ended.set()
        return await asyncio.gather(*clients)

    return [answer for answers in asyncio.run(whole()) for answer in answers]

"""Start and stop vLLM's OpenAI server as a subprocess."""

import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from baton.infra.paths import baton_home
from baton.infra.process.launch import SHORT_WAITS
from baton.infra.process.logs import end_of
from baton.infra.process.process_group import start_group, stop_group
from baton.infra.progress import say
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError, read_manifest
from baton.tasks.models.adapter_base import ModelFolders, open_model
from baton.tasks.models.tokenizers import alone
from baton.tasks.serve import door, explained
from baton.tasks.serve.door import KEY, authorization
from baton.tasks.serve.spec import ServeSpec
from baton.tasks.vllm.hooks import max_lora_rank

VLLM = "baton.tasks.serve.vllm_server"
MIDDLEWARE = (explained.MIDDLEWARE, door.MIDDLEWARE)  # the last one gets a request first
LOOPBACK = "127.0.0.1"
STOP_GRACE_S = 15.0  # from SIGTERM to SIGKILL
POLL_S = 0.25  # between two health checks of a starting server
REPORT_S = 15.0  # between two lines about it
LOG_LINES = 15  # lines of its log to show, if none of them ends a traceback
ERROR = re.compile(r"(\(\w+ pid=\d+\) )?[\w.]+(Error|Exception): ")


class ServerFailed(StageError):
    """A server didn't start, doesn't respond, or responds wrongly; the message has the end of its log."""


@dataclass(frozen=True)
class Served:
    """A served model, with the names that requests may use."""

    files: ModelFolders
    digest: str  # of the HFModel: the first name, contained in each response
    name: str

    @property
    def directory(self) -> Path:
        return self.files.directory

    def arguments(self) -> list[str]:
        """vLLM's arguments for it. The first name that they give an adapter is its base's, which is not served."""
        folder, model = self.directory, self.files
        arguments = ["--model", str(model.weights), "--tokenizer", str(alone(folder)), "--served-model-name"]
        if model.adapter is None:
            return [*arguments, self.digest, self.name]
        arguments += [f"base-of-{self.digest}", self.digest, self.name, "--generation-config", str(folder)]
        arguments += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(max_lora_rank(model.rank))]
        return [*arguments, "--lora-modules", f"{self.digest}={model.adapter}"]


def open_served(directory: Path, base: Path | None = None) -> Served:
    """Open the model in an HFModel's or a PublishedModel's directory, verifying every file; an adapter with its `base`,
    by default where that was when the adapter was trained. Raises ArtifactError."""
    manifest = read_manifest(directory)
    if manifest.kind not in ("hf_model", "published_model"):
        raise ArtifactError(f"{directory}: a {manifest.kind}; only an hf_model or a published_model can be served")
    digest = manifest.digest if manifest.kind == "hf_model" else manifest.parents.get("model", manifest.digest)
    name = manifest.facts.get("registry_name") or manifest.facts["label"]
    return Served(open_model(directory, base), digest, name)


def server_log(name: str, digest: str) -> Path:
    """The log of the servers of a model."""
    return baton_home() / "serve" / f"{name}-{digest[:12]}.log"


def engine_arguments(spec: ServeSpec) -> list[str]:
    """vLLM's arguments for a spec. Remote code is never trusted, by vLLM's default."""
    arguments = ["--dtype", spec.dtype, "--max-num-seqs", str(spec.max_num_seqs)]
    arguments += ["--tensor-parallel-size", str(spec.tensor_parallel)]
    arguments += ["--gpu-memory-utilization", str(spec.gpu_memory_share)]  # on CPU VLLM_CPU_KVCACHE_SPACE applies
    # auto: the model's positions, or as many as the KV cache has room for
    return [*arguments, "--max-model-len", str(spec.max_model_len or "auto")]


class Server:
    """A server process. It ends by `stop`, or with this process, however that ends."""

    def __init__(self, spec: ServeSpec, model: Served, log: Path, module: str = VLLM) -> None:
        """Start it on a free loopback port. Its output goes to `log`."""
        self.model, self.log, self.spec = model, log, spec
        self._reserved = reserve(LOOPBACK, 0)
        port = self._reserved.getsockname()[1]
        self.url = f"http://{LOOPBACK}:{port}"
        self.key = secrets.token_urlsafe(32)  # other users of this machine can connect too
        self.started = time.monotonic()
        arguments = [
            *model.arguments(),
            "--host",
            LOOPBACK,
            "--port",
            str(port),
            "--disable-uvicorn-access-log",
            *(f"--middleware={middleware}" for middleware in MIDDLEWARE),
            *engine_arguments(spec),
        ]
        environment = SHORT_WAITS | os.environ | {"PYTHONUNBUFFERED": "1", KEY: self.key}
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(spec.cpu_cache_gib)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            self._begins = stream.tell()  # after the output of the model's earlier servers
            self.process = start_group([sys.executable, "-m", module, *arguments], stream, environment)

    def wait_until_healthy(
        self, waiting: Callable[[float], None], cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until /health succeeds, calling `waiting(seconds)` a few times per second. Raises ServerFailed if the
        process ends, exceeds the spec's start_timeout_s, or is `cancelled`."""
        with self._reserved, self.client() as client:
            while True:
                waited = self.age_s()
                if self.process.poll() is not None:
                    raise self.failed(f"ended with exit code {self.process.returncode} before it was healthy")
                if cancelled():
                    raise ServerFailed("cancelled while it was starting")
                try:
                    if client.get(f"{self.url}/health").status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                if waited > self.spec.start_timeout_s:
                    raise self.failed(f"was not healthy after {waited:.0f} s (start_timeout_s)")
                waiting(waited)
                time.sleep(POLL_S)

    def client(self) -> httpx.Client:
        """A client for its health checks."""
        return httpx.Client(timeout=5, trust_env=False, headers=authorization(self.key))

    def failed(self, reason: str) -> ServerFailed:
        """The error of a failed server, with the end of its log."""
        lines = end_of(self.log, self._begins).decode(errors="replace").splitlines()
        errors = [line for line in lines if ERROR.match(line)][-3:]  # of several processes: the cause is not the last
        shown = "".join(f"\n    {line[:300]}" for line in errors or lines[-LOG_LINES:])
        return ServerFailed(f"the server of model {self.model.digest[:12]} {reason}. Its log ({self.log}) ends:{shown}")

    def age_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Stop the server and all of its processes."""
        self._reserved.close()
        stop_group(self.process, grace_s)


def report_waiting(server: Server, title: str) -> Callable[[float], None]:
    """A callback that reports periodically while a server starts."""
    reported = 0.0
    say(f"  {title}: starting its server (log: {server.log})")

    def report(waited: float) -> None:
        nonlocal reported
        if waited - reported > REPORT_S:
            reported = waited
            say(f"  {title}: {waited:.0f} s, loading")

    return report


def reserve(host: str, port: int) -> socket.socket:
    """Bind a socket that reserves the port until the server, which takes seconds to start, has bound it too: Linux
    allows both (SO_REUSEADDR, and this one doesn't listen). Raises ServerFailed if the port is taken."""
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise ServerFailed(f"{host}:{port}: {error.strerror}; choose another --port or --host") from error
    return held


def url_host(host: str) -> str:
    """The host as written in a URL: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host

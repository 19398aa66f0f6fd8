"""vLLM's OpenAI-compatible server as a process of ours: started, waited for, ended."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from infra.launch import SHORT_WAITS
from infra.lifeline import LAUNCHED
from infra.progress import say
from infra.watch import kill_group
from tasks.job import StageError
from tasks.manifest import ArtifactError, verify
from tasks.serve.spec import ServeSpec

VLLM = "tasks.serve.vllm_server"
LOOPBACK = "127.0.0.1"
STOP_GRACE_S = 15.0  # from SIGTERM to SIGKILL
LOOK_S = 0.25  # between two looks at a server that starts
LAST_WORDS = 15  # lines of its log, where none of them is the end of a traceback
ERROR = re.compile(r"(\(\w+ pid=\d+\) )?[\w.]+(Error|Exception): ")


class ServerFailed(StageError):
    """A server did not start, does not answer, or answers wrongly; the message has its last words."""


@dataclass(frozen=True)
class Served:
    """A model that is served, and the names that requests may call it by."""

    directory: Path
    digest: str  # of the HFModel: the first name, which each answer bears
    name: str

    @property
    def chats(self) -> bool:
        """Whether its tokenizer has a chat template."""
        config = self.directory / "tokenizer_config.json"
        if (self.directory / "chat_template.jinja").exists():
            return True
        return config.exists() and bool(json.loads(config.read_text()).get("chat_template"))


def open_served(directory: Path, name: str | None = None) -> Served:
    """The model in an HFModel's or a PublishedModel's directory, every file checked. Raises ArtifactError."""
    manifest = verify(directory)
    if manifest.kind not in ("hf_model", "published_model"):
        raise ArtifactError(f"{directory}: a {manifest.kind}; only an hf_model or a published_model can be served")
    digest = manifest.digest if manifest.kind == "hf_model" else manifest.parents.get("model", manifest.digest)
    return Served(directory, digest, name or manifest.facts.get("registry_name") or manifest.facts["label"])


def engine_words(spec: ServeSpec) -> list[str]:
    """vLLM's arguments for a spec. Remote code is never trusted: its default, which nothing here changes."""
    words = ["--dtype", spec.dtype, "--max-num-seqs", str(spec.max_num_seqs)]
    words += ["--tensor-parallel-size", str(spec.tensor_parallel)]
    words += ["--gpu-memory-utilization", str(spec.gpu_memory_share)]  # on CPU VLLM_CPU_KVCACHE_SPACE counts
    return words + (["--max-model-len", str(spec.max_model_len)] if spec.max_model_len else [])


class Server:
    """One server process. It ends by `stop`, and with this process however that ends."""

    def __init__(self, spec: ServeSpec, model: Served, log: Path, module: str = VLLM) -> None:
        """Start it on a free port of this machine's own address. Its output goes to `log`."""
        self.model, self.log, self.spec = model, log, spec
        self._reserved = reserve(LOOPBACK, 0)
        port = self._reserved.getsockname()[1]
        self.url = f"http://{LOOPBACK}:{port}"
        self.started = time.monotonic()
        self._stopped = False
        words = ["--model", str(model.directory), "--served-model-name", model.digest, model.name]
        words += ["--host", LOOPBACK, "--port", str(port), "--disable-uvicorn-access-log", *engine_words(spec)]
        environment = SHORT_WAITS | os.environ | LAUNCHED | {"PYTHONUNBUFFERED": "1"}
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(spec.cpu_cache_gib)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            self._begins = stream.tell()  # after what an earlier server of the model said
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                stdin=subprocess.PIPE,  # its lifeline
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def wait_until_healthy(
        self, waiting: Callable[[float], None], given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Return when /health says so; `waiting(seconds)` is called a few times a second. Raises ServerFailed when
        the process ends, when it takes longer than the spec's start_timeout_s, or when `given_up`."""
        with self._reserved, httpx.Client(timeout=5, trust_env=False) as client:
            while True:
                waited = self.age_s()
                if self.process.poll() is not None:
                    raise self.failed(f"ended with exit code {self.process.returncode} before it was healthy")
                if given_up():
                    raise ServerFailed("given up while it was starting")
                try:
                    if client.get(f"{self.url}/health").status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                if waited > self.spec.start_timeout_s:
                    raise self.failed(f"was not healthy after {waited:.0f} s (start_timeout_s)")
                waiting(waited)
                time.sleep(LOOK_S)

    def failed(self, how: str) -> ServerFailed:
        """The error, with the server's last words."""
        lines = self.log.read_bytes()[self._begins :].decode(errors="replace").splitlines()
        errors = [line for line in lines if ERROR.match(line)][-3:]  # several processes: the cause is not the last
        said = "".join(f"\n    {line[:300]}" for line in errors or lines[-LAST_WORDS:])
        return ServerFailed(f"the server of model {self.model.digest[:12]} {how}. Its last words ({self.log}):{said}")

    def age_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End it; when this returns no process of it is left."""
        if self._stopped:  # its process id may be another's by now
            return
        self._stopped = True
        self._reserved.close()
        kill_group(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass  # it had its time
        kill_group(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()


def waiting(server: Server, title: str, every_s: float = 15.0) -> Callable[[float], None]:
    """A line now and then while a server starts."""
    told = 0.0
    say(f"  {title}: starting its server (log: {server.log})")

    def tell(waited: float) -> None:
        nonlocal told
        if waited - told > every_s:
            told = waited
            say(f"  {title}: {waited:.0f} s, loading")

    return tell


def reserve(host: str, port: int) -> socket.socket:
    """A socket that holds the port until the server, which needs seconds to get there, has bound it as well. Linux
    lets both have it (SO_REUSEADDR, and this one does not listen). Raises ServerFailed when it is taken."""
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise ServerFailed(f"{host}:{port}: {error.strerror}; choose another --port or --host") from error
    return held


def written(host: str) -> str:
    return f"[{host}]" if ":" in host else host

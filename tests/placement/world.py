"""The parts that all worlds of placed stages share: this repository, SkyPilot's unmodified API server, and functions
that wait."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from baton.infra.paths import QUIET

REPOSITORY = Path(__file__).parents[2]
BIN = REPOSITORY / ".venv" / "bin"
API_SERVER = "http://127.0.0.1:46580"


def root() -> Path:
    """Return the world's folder, which run.sh creates."""
    return Path(os.environ["BATON_WORLD"])


def sky(*words: str, timeout_s: float = 180) -> str:
    """Return the output of a SkyPilot command, run in the environment of its API server."""
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root() / "wheels"), "PYTHONPATH": str(REPOSITORY)} | QUIET
    log = root() / "log/sky.txt"
    with log.open("ab") as output:
        begin = output.tell()
        ended = subprocess.run(
            [os.environ["BATON_SKY"], *words],
            env=os.environ | environment,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,  # not a pipe, which the API server would keep open
            stderr=output,
            timeout=timeout_s,
            check=False,
        )
    text = log.read_bytes()[begin:].decode()
    assert ended.returncode == 0, text
    return text


def write_sky_config(words: str) -> None:
    """Write SkyPilot's settings to root's home. There is no network, so the server's network check asks the world."""
    folder = Path.home() / ".sky"
    folder.mkdir()
    (folder / "config.yaml").write_text("jobs:\n  controller:\n    consolidation_mode: true\n" + words)
    (folder / "plugins.yaml").write_text("plugins:\n  - class: tests.placement.reachable.Reachable\n")


@contextmanager
def api_server() -> Iterator[None]:
    """Run SkyPilot's API server, and a host for its network check, until the end of the block."""
    words = ["http.server", "46599", "--bind", "127.0.0.1", "--directory", str(root() / "wheels")]
    with running([sys.executable, "-m", *words]):
        start_api_server()
        try:
            yield
        finally:
            stop_api_server()


def start_api_server() -> None:
    sky("api", "start")


def stop_api_server() -> None:
    sky("api", "stop", timeout_s=60)


@contextmanager
def running(command: list[str], **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a daemon in the foreground until the end of the block."""
    with (root() / "log/daemons.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def filled(template: Path, words: Mapping[str, object]) -> str:
    """Return a file's text with its @…@ filled in."""
    text = template.read_text()
    for word, value in words.items():
        text = text.replace(f"@{word}@", str(value))
    return text


def write_uv(path: Path) -> None:
    """Write uv where SkyPilot's machines find it."""
    words = {"ROOT": root(), "PYTHON": BIN / "python", "UV": BIN / "uv"}
    path.write_text(filled(Path(__file__).parent / "uv.sh", words))
    path.chmod(0o755)


def until(true: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.5)

"""Open a conversation with a model: at the URL of a server, or with a server of its own on this machine."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
from rich.console import Console

from baton.infra.text import escaped
from baton.tasks.core.job import StageError
from baton.tasks.models.find import find_model
from baton.tasks.serve.chat.conversation import NO_KEY, Conversation, message_of
from baton.tasks.serve.explained import NO_CHAT, serves
from baton.tasks.serve.server import VLLM, Served, Server, open_served, report_waiting, server_log
from baton.tasks.serve.smoke import smoke_test
from baton.tasks.serve.spec import ServeSpec

KEY = "OPENAI_API_KEY"
MODULE = VLLM  # of the servers of models of this machine
DIGEST = re.compile(r"[0-9a-f]{64}")
REGISTERED = re.compile(r"[\w. -]+")  # a name that can be asked for in the registry


def is_url(model: str) -> bool:
    return model.startswith(("http://", "https://"))


@contextmanager
def opened(model: str, name: str | None, base: Path | None, spec: ServeSpec, completes: bool) -> Iterator[Conversation]:
    """Open a conversation with a model of this machine, whose server ends with it, or with the model `name` at a URL.
    Raises StageError, ArtifactError."""
    if is_url(model):
        url = _api(model)
        model_name, digest = chosen(url, _listed(url), name)
        client = openai.AsyncOpenAI(base_url=url, api_key=os.environ.get(KEY) or NO_KEY, max_retries=0)
        yield Conversation(client, model_name, escaped(model_name), digest, completes)
        return
    served = open_served(located(model), base)
    if not completes and not served.files.chats:
        raise StageError(f"{served.name} ({served.digest[:12]}): {NO_CHAT}")
    with started(served, spec) as server:
        local = openai.DefaultAsyncHttpxClient(trust_env=False)  # no proxy leads to this machine
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, http_client=local)
        yield Conversation(client, served.digest, escaped(served.name), served.digest, completes)


@contextmanager
def started(model: Served, spec: ServeSpec) -> Iterator[Server]:
    """Run a server of a model that has passed the smoke test. Raises ServerFailed."""
    server = Server(spec, model, server_log(model.name, model.digest), MODULE)
    try:
        with _waiting(server) as report:
            server.wait_until_healthy(report)
            smoke_test(server.url, model, server.key)
        yield server
    finally:
        server.stop()


@contextmanager
def _waiting(server: Server) -> Iterator[Callable[[float], None]]:
    """Yield a callback that shows how long the server has been starting: on one line of a terminal, or now and then."""
    title, console = f"{server.model.name} ({server.model.digest[:12]})", Console(stderr=True)
    if not console.is_terminal:
        yield report_waiting(server, title)
        return
    with console.status("") as status:
        yield lambda waited: status.update(escaped(f"{title}: starting its server, {waited:.0f} s"))


def located(model: str) -> Path:
    """Return the folder of a model of the home folder, or of the newest version of a name in a registry on a server.
    Raises StageError."""
    try:
        return find_model(model)
    except StageError:
        if not is_url(os.environ.get("MLFLOW_TRACKING_URI", "")) or not REGISTERED.fullmatch(model):
            raise
        from baton.tasks.publish.aliases import versions  # MLflow
        from baton.tasks.serve.fetched import fetch

        found = versions(model, patience_s=0)
        if not found:
            raise
        return fetch(found[-1])


def chosen(url: str, listed: Sequence[tuple[str, str]], name: str | None) -> tuple[str, str]:
    """Return the name and the digest of the model to talk to, from the names and files that the server lists. A model
    of Baton's server has its digest as a second name for the same files. Raises StageError."""
    names = [each for each, _ in listed]
    if name is not None and name not in names:
        raise StageError(f"{url}: The model `{name}` does not exist. {serves(names)}")
    files = dict(listed)
    if name is None and len(set(files.values())) != 1:
        raise StageError(f"{url}: {serves(names)}. Choose one with --model")
    of_model = [each for each in names if name is None or files[each] == files[name]]
    digest = next((each for each in of_model if DIGEST.fullmatch(each)), "")
    # A champion can be replaced while the conversation lasts: its name stays, and its digest does not
    return name or next((each for each in of_model if each != digest), digest), digest


def _api(url: str) -> str:
    """Return the address of the API: below /v1, if the URL has no path. Raises StageError."""
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            raise ValueError("no host")
    except ValueError as error:
        raise StageError(f"{url}: not the URL of a server ({error})") from error
    if parts.username or parts.password:
        raise StageError(f"{parts.hostname}: the URL has a user or a password in it; set the key as {KEY} instead")
    return url.rstrip("/") if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/v1"


def _listed(url: str) -> list[tuple[str, str]]:
    """Return the names of a server's models, each with the files that it names. Raises StageError."""
    client = openai.OpenAI(base_url=url, api_key=os.environ.get(KEY) or NO_KEY, max_retries=0, timeout=30)
    try:
        cards: list[Any] = list(client.models.list())
    except (openai.OpenAIError, ValueError) as error:
        raise StageError(f"{url}/models: {message_of(error)}") from error
    return [(card.id, getattr(card, "root", None) or card.id) for card in cards]

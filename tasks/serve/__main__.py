"""Serve a model with OpenAI's API on a port of this machine, until Ctrl-C or SIGTERM.

baton serve MODEL                 directory of an HFModel, PublishedModel or Endpoint, or a published model's name
baton serve MODEL --beside OTHER  two models, the second one below /beside/v1
baton serve --follow NAME         the champion version of the registered model NAME
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from threading import Event

import click
from click.core import ParameterSource

from baton.infra.commands import command
from baton.infra.errors import UserError
from baton.infra.options import Folder, Number
from baton.infra.paths import quiet
from baton.infra.progress import say
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import RECORD, ArtifactError, read_manifest, verify
from baton.tasks.models.find import ModelFolder
from baton.tasks.publish.spec import ALIAS, RESERVED
from baton.tasks.serve.active import Active
from baton.tasks.serve.door import KEY, api_key
from baton.tasks.serve.limits import MIB, RequestLimits
from baton.tasks.serve.proxy import BESIDE
from baton.tasks.serve.serve import MODEL
from baton.tasks.serve.server import Served, Server, ServerFailed, open_served, reserve, server_log, url_host
from baton.tasks.serve.service import ServerRunner, run_service
from baton.tasks.serve.spec import SIDE_BY_SIDE, ServeSpec
from baton.tasks.serve.switch import Backend, Switch

_seconds = partial(click.option, show_default=True, type=Number(0.1, 1e6))


@click.command()
@click.argument("path", metavar="MODEL", required=False, type=ModelFolder())
@click.option("--beside", type=ModelFolder(), help=f"Serve a second model too, below {BESIDE}/v1.")
@click.option("--follow", "name", metavar="NAME", help="Serve the version of this registered model that has the alias.")
@click.option("--alias", default="champion", show_default=True, help="Alias to follow.")
@_seconds("--every", default=10.0, help="Poll interval of the registry, seconds.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0: all interfaces.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: any free one.")
@click.option("--like", type=Folder(), help="Use the settings of this Endpoint.")
@click.option(
    "--base",
    type=Folder(),
    help="Weights of the adapter in MODEL, if they are not where it was trained.",
)
@_seconds("--drain", default=300.0, help="Seconds to finish responses at a switch or shutdown.")
@_seconds("--health", default=30.0, help="Seconds without a successful health check until a server is replaced.")
@_seconds(
    "--first-byte",
    default=RequestLimits.first_byte_s,
    help="Seconds until a response begins (for a non-streamed one, is complete); then 504.",
)
@_seconds(
    "--between-bytes",
    default=RequestLimits.between_bytes_s,
    help="Seconds without data until a response is cut off.",
)
@click.option(
    "--body-mib",
    default=RequestLimits.body // MIB,
    show_default=True,
    type=click.IntRange(1, 4096),
    help="Maximum request body, MiB; all pending bodies together may take eight times as much.",
)
@click.option(
    "--connections",
    default=RequestLimits.connections,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum number of client connections.",
)
@click.option(
    "--gpu-memory-share",
    type=Number(0, 1, min_open=True),
    help="Fraction of each GPU's memory.  [default: 0.9; with --beside or --follow 0.45]",
)
def main(
    path: Path | None,
    beside: Path | None,
    name: str | None,
    alias: str,
    every: float,
    host: str,
    port: int,
    like: Path | None,
    base: Path | None,
    drain: float,
    health: float,
    first_byte: float,
    between_bytes: float,
    body_mib: int,
    connections: int,
    gpu_memory_share: float | None,
) -> None:
    """Serve MODEL, a folder or the name of a published model, or the champion of --follow NAME, with OpenAI's API."""
    if (path is None) == (name is None):
        raise click.UsageError("give either MODEL or --follow NAME")
    _check_options(follows=name is not None)
    if name is not None and (not name.strip() or set(name) & set("/:")):
        raise click.UsageError(f"--follow {name!r}: must be the name of a registered model, without / and :")
    if not ALIAS.fullmatch(alias):
        raise click.UsageError(f"--alias {alias!r}: must be letters, digits, _ and -, other than {RESERVED}")
    quiet()
    switch, second = Switch(), Switch() if beside else None
    body = body_mib * MIB
    limits = RequestLimits(
        connections, body=body, bodies=8 * body, first_byte_s=first_byte, between_bytes_s=between_bytes
    )
    try:
        if like and (kind := read_manifest(like).kind) != "endpoint":
            raise click.UsageError(f"--like {like}: a {kind}; must be the folder of an endpoint")
        spec = _spec(like or path, SIDE_BY_SIDE if name or beside else None, gpu_memory_share)
        start = partial(_start, spec)
        opened = [(switch, partial(_model, path, base))] if path else []
        opened += [(second, partial(_model, beside))] if beside and second else []
        slots = [Slot(Active(each, start, health, drain), reopen(), reopen) for each, reopen in opened]
        key = api_key()
        with reserve(host, port) as bound:
            if not key and not ip_address(bound.getsockname()[0]).is_loopback:
                say(f"! whoever reaches {host} can use the model: {KEY}, the key that clients must send, is not set")
            if slots:
                run_servers: ServerRunner = partial(_serve, slots)
            else:
                from baton.tasks.serve.follow import Follower  # MLflow

                run_servers = Follower(str(name), alias, every, Active(switch, start, health, drain)).run
            say(
                f"http://{url_host(host)}:{bound.getsockname()[1]}/v1 · chat: /chat · status: /baton · stop with Ctrl-C"
            )
            run_service(switch, bound, drain, run_servers, limits, second)
    except (StageError, ArtifactError) as error:
        raise UserError(str(error)) from error


def _check_options(follows: bool) -> None:
    """Raise click.UsageError for options that apply only to the other of PATH and --follow."""
    given = click.get_current_context().get_parameter_source
    for option in ("base", "beside") if follows else ("alias", "every"):
        if given(option) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{option} applies to {'MODEL' if follows else '--follow'} only; leave it out")


def _spec(path: Path | None, default_share: float | None, share: float | None) -> ServeSpec:
    """Return an Endpoint's spec, or the defaults."""
    manifest = read_manifest(path) if path else None
    spec = ServeSpec(**manifest.spec) if manifest and manifest.kind == "endpoint" else ServeSpec()
    share = share or default_share
    return spec.model_copy(update={"gpu_memory_share": share}) if share else spec


def _model(path: Path, base: Path | None = None) -> Served:
    if read_manifest(path).kind != "endpoint":
        return open_served(path, base=base)
    verify(path)
    try:
        recorded = json.loads((path / RECORD / MODEL).read_text())
        directory, digest = Path(str(recorded["path"])), str(recorded["digest"])
        base = base or (Path(str(recorded["base"])) if "base" in recorded else None)
    except (OSError, ValueError, KeyError, TypeError) as error:  # the record is not part of the digest
        raise ArtifactError(f"{path / RECORD / MODEL} cannot be read ({error!r}); serve the model's folder") from error
    if not directory.exists():
        raise ArtifactError(
            f"model {digest[:12]} of this endpoint is no longer in {directory}; give its new location: "
            f"{command(f'baton serve DIRECTORY --like {path}')}"
        )
    served = open_served(directory, base=base)
    if served.digest != digest:
        raise ArtifactError(f"{directory}: expected model {digest[:12]}, found {served.digest[:12]}")
    return served


def _start(spec: ServeSpec, model: Served) -> Server:
    return Server(spec, model, server_log(model.name, model.digest))


@dataclass(frozen=True)
class Slot:
    """A model to serve, and what keeps a server of it running."""

    active: Active
    model: Served
    reopen: Callable[[], Served]  # for a replacement of its server

    def start(self, cancelled: Callable[[], bool]) -> None:
        """Start the first server and send it the requests. Raises ServerFailed."""
        model = self.model
        server = self.active.start_healthy(model, f"{model.name} ({model.digest[:12]})", cancelled)
        self.active.activate(server, Backend(server.url, model.digest, key=server.key), self.reopen)
        say(f"✓ {model.name} ({model.digest[:12]}) is serving after {server.age_s():.0f} s")


def _serve(slots: Sequence[Slot], stopping: Event) -> None:
    """Serve the models until `stopping`. Raises ServerFailed if the first server of one fails; a later one is replaced.
    They start one after the other, since vLLM measures the free memory of a GPU."""
    try:
        with ThreadPoolExecutor() as pool:
            try:
                watches = []
                for slot in slots:
                    slot.start(stopping.is_set)
                    watches.append(pool.submit(slot.active.watch, stopping))
                wait(watches, return_when=FIRST_EXCEPTION)
            except ServerFailed:
                if not stopping.is_set():
                    raise
            finally:
                stopping.set()
        for watch in watches:
            watch.result()
    finally:
        for slot in slots:
            slot.active.stop()


if __name__ == "__main__":
    main()

"""Serve a model: OpenAI's API on a port of this machine, until Ctrl-C or SIGTERM.

python -m tasks.serve PATH             an HFModel's, a PublishedModel's or an Endpoint's directory
python -m tasks.serve --follow NAME    whatever version of the registered model NAME is champion
"""

import json
from functools import partial
from pathlib import Path
from threading import Event

import click

from infra.errors import Stopped
from infra.home import baton_home, quiet
from infra.progress import say
from tasks.job import StageError
from tasks.manifest import RECORD, ArtifactError, read_manifest, verify
from tasks.serve.proxy import Backend, Switch
from tasks.serve.serve import MODEL
from tasks.serve.server import Served, Server, ServerFailed, open_served, reserve, waiting, written
from tasks.serve.service import Keeper, run_service
from tasks.serve.smoke import smoke_test
from tasks.serve.spec import ServeSpec

SIDE_BY_SIDE = 0.45  # of a GPU's memory: during a switch two engines share it


@click.command()
@click.argument("path", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--follow", "name", metavar="NAME", help="Serve whatever version of this registered model has the alias.")
@click.option("--alias", default="champion", show_default=True, help="The alias that is followed.")
@click.option("--every", default=10.0, show_default=True, type=click.FloatRange(0.1), help="Seconds between two looks.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to answer on; 0.0.0.0 is all of them.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: one that is free.")
@click.option("--like", type=click.Path(exists=True, file_okay=False, path_type=Path), help="As this Endpoint does.")
@click.option("--drain", default=300.0, show_default=True, help="Seconds that an answer may take at a switch, an end.")
@click.option(
    "--gpu-memory-share", type=click.FloatRange(0, 1, min_open=True), help="Of each GPU. [0.9; followed 0.45]"
)
def main(
    path: Path | None,
    name: str | None,
    alias: str,
    every: float,
    host: str,
    port: int,
    like: Path | None,
    drain: float,
    gpu_memory_share: float | None,
) -> None:
    """OpenAI's API for the model in PATH, or for the champion of --follow NAME."""
    if (path is None) == (name is None):
        raise click.UsageError("give either PATH or --follow NAME")
    quiet()
    switch = Switch()
    try:
        spec = _spec(like or path, SIDE_BY_SIDE if name else None, gpu_memory_share)
        model = _model(path) if path else None
        with reserve(host, port) as bound:
            start = partial(_start, spec)
            if model:
                keep: Keeper = partial(_keep, switch, start, model)
            else:
                from tasks.serve.follow import Follower  # MLflow

                keep = Follower(str(name), alias, every, drain, switch, start).keep
            say(f"http://{written(host)}:{bound.getsockname()[1]}/v1 · how it stands: /baton · Ctrl-C ends it")
            run_service(switch, bound, drain, keep)
    except (StageError, ArtifactError) as error:
        raise Stopped(str(error)) from error


def _spec(path: Path | None, share: float | None, asked: float | None) -> ServeSpec:
    """An Endpoint's, or the defaults; nothing is measured of a service."""
    manifest = read_manifest(path) if path else None
    spec = ServeSpec(**manifest.spec) if manifest and manifest.kind == "endpoint" else ServeSpec()
    share = asked or share
    return spec.model_copy(update={"gpu_memory_share": share}) if share else spec


def _model(path: Path) -> Served:
    if read_manifest(path).kind != "endpoint":
        return open_served(path)
    verify(path)
    was = json.loads((path / RECORD / MODEL).read_text())
    if not Path(was["path"]).exists():
        raise ArtifactError(
            f"model {was['digest'][:12]} of this endpoint is not in {was['path']} any more; say where it is: "
            f"python -m tasks.serve DIRECTORY --like {path}"
        )
    verify(Path(was["path"]), was["digest"])
    return open_served(Path(was["path"]))


def _start(spec: ServeSpec, model: Served) -> Server:
    return Server(spec, model, baton_home() / "serve" / f"{model.name}-{model.digest[:12]}.log")


def _keep(switch: Switch, start: partial[Server], model: Served, stopping: Event) -> None:
    """One model, until `stopping`. Raises ServerFailed when its server fails or dies."""
    server = start(model)
    try:
        server.wait_until_healthy(waiting(server, f"{model.name} ({model.digest[:12]})"), stopping.is_set)
        smoke_test(server.url, model)
        switch.turn(Backend(server.url, model.digest))
        say(f"✓ {model.name} ({model.digest[:12]}) serves, after {server.age_s():.0f} s")
        while not stopping.wait(1):
            if not server.alive:
                raise server.failed("died")
    except ServerFailed:
        if not stopping.is_set():
            raise
    finally:
        server.stop()


if __name__ == "__main__":
    main()

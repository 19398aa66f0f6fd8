"""Build the stages' images with Docker, push them, and pin them by digest in Flyte's configuration.

baton images REGISTRY                        all, in FLYTECTL_CONFIG or ~/.flyte/config.yaml
baton images REGISTRY train --config FILE    one family, in another file
baton images REGISTRY --cpu                  without CUDA, for clusters without GPUs
PIP_INDEX_URL=https://… baton images REGISTRY --base IMAGE
                                                 from a company's own mirror of PyPI, on its own base image
"""

import os
from dataclasses import replace
from pathlib import Path

import click
from flytekit.image_spec.image_spec import ImageBuildEngine

from baton.images import BY_FAMILY, FamilyImage, without_cuda
from baton.infra.commands import command
from baton.infra.errors import UserError
from baton.infra.image_registry import RegistryError, digest_of
from baton.infra.storage.durable import replacement


def pushed(image: FamilyImage) -> str:
    """Build and push an image unless its registry has it; its name by digest. Raises NotBuilt, RegistryError."""
    ImageBuildEngine.build(image)
    digest = digest_of(image.image_name())
    if digest is None:
        raise RegistryError(f"{image.image_name()}: was pushed, but its registry does not have it")
    return f"{image.registry}/{image.name}@{digest}"


def pin(config: Path, pinned: dict[str, str]) -> None:
    """Set images in a configuration file, and leave the rest of it unchanged. Raises UserError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML()
    try:
        content = (yaml.load(config) if config.exists() else None) or {}
        content["images"] = {**(content.get("images") or {}), **pinned}
        config.parent.mkdir(parents=True, exist_ok=True)
        if not pinned and not config.exists():
            return
        with replacement(config) as partial:
            yaml.dump(content, partial)
    except (OSError, YAMLError, UnicodeDecodeError, AttributeError, TypeError) as error:  # the last two: no mapping
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{config}: is no configuration that can be changed ({reason}); give another with --config"
        ) from error


@click.command()
@click.argument("registry")
@click.argument("families", nargs=-1, type=click.Choice([*BY_FAMILY]))
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=lambda: os.environ.get("FLYTECTL_CONFIG") or str(Path.home() / ".flyte/config.yaml"),
    help="Flyte's configuration file; default: FLYTECTL_CONFIG, or ~/.flyte/config.yaml",
)
@click.option("--base", help="An image with Python 3.12, in place of Docker Hub's python:3.12-slim-bookworm.")
@click.option("--cpu", is_flag=True, help="Without CUDA, for clusters without GPUs; --base has Python 3.11 then.")
def main(registry: str, families: tuple[str, ...], config: Path, base: str | None, cpu: bool) -> None:
    """Build the images of FAMILIES (default: all), push them to REGISTRY, and pin them in Flyte's configuration."""
    pinned: dict[str, str] = {}
    pin(config, pinned)  # building takes an hour: what is wrong with the file is said now
    for family in families or BY_FAMILY:
        try:
            image = without_cuda(BY_FAMILY[family]) if cpu else BY_FAMILY[family]
            image = replace(image, registry=registry, base_image=base)
        except ValueError as error:
            raise UserError(str(error)) from error
        pinned[image.name] = pushed(image)
        click.echo(pinned[image.name])
    pin(config, pinned)
    click.echo(f"pinned in {config}; next: {command(f'pyflyte --config {config} run --remote --copy all …')}")

"""Build the stages' images with Docker, push them, and pin them by digest in Flyte's configuration.

python -m images REGISTRY                        all, in FLYTECTL_CONFIG or ~/.flyte/config.yaml
python -m images REGISTRY train --config FILE    one family, in another file
"""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import click
from flytekit.image_spec.image_spec import ImageBuildEngine

from images import BY_FAMILY, FamilyImage
from infra.commands import command
from infra.errors import Stopped


def pushed(image: FamilyImage) -> str:
    """Build and push an image unless the registry has it; returns its name by digest. Raises Stopped."""
    if image.exist() is None:  # Flyte would treat it as built
        raise Stopped("Docker or the registry does not answer; check that both are running and reachable")
    ImageBuildEngine.build(image)
    return f"{image.registry}/{image.name}@{digest_of(image.image_name())}"


def digest_of(image: str) -> str:
    """An image's digest in its registry. Raises Stopped."""
    words = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise Stopped(f"{image}: cannot look up its digest: {ended.stderr.strip()}")
    return ended.stdout.strip()


def pin(config: Path, pinned: dict[str, str]) -> None:
    """Set images in a configuration file, and leave the rest of it unchanged."""
    from ruamel.yaml import YAML

    yaml = YAML()
    content = (yaml.load(config) if config.exists() else None) or {}
    content["images"] = {**content.get("images", {}), **pinned}
    config.parent.mkdir(parents=True, exist_ok=True)
    partial = config.with_name(f"{config.name}.partial")
    yaml.dump(content, partial)
    partial.replace(config)


@click.command()
@click.argument("registry")
@click.argument("families", nargs=-1, type=click.Choice([*BY_FAMILY]))
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=lambda: os.environ.get("FLYTECTL_CONFIG") or str(Path.home() / ".flyte/config.yaml"),
    help="Flyte's configuration file; default: FLYTECTL_CONFIG, or ~/.flyte/config.yaml",
)
def main(registry: str, families: tuple[str, ...], config: Path) -> None:
    """Build the images of FAMILIES (default: all), push them to REGISTRY, and pin them in Flyte's configuration."""
    pinned = {}
    for family in families or BY_FAMILY:
        try:
            image = replace(BY_FAMILY[family], registry=registry)
        except ValueError as error:
            raise Stopped(str(error)) from error
        pinned[image.name] = pushed(image)
        click.echo(pinned[image.name])
    pin(config, pinned)
    click.echo(f"pinned in {config}; next: {command(f'pyflyte --config {config} run --remote --copy all …')}")


if __name__ == "__main__":
    main()

"""The container image of each stage family, for stages that run on rented machines or in a cluster's pods.

An image is Python 3.12 with a complete pinned list, `images/<family>.txt`, which `uv pip compile` resolves from the
short `images/<family>.in` (`make lock`); images/Dockerfile installs it. CUDA comes from the lists too: the PyPI builds
of torch and vLLM bundle it, so a node needs only NVIDIA's driver. On a laptop no image is built: Flyte needs one only
when a workflow is registered. `images/<family>-cpu.txt` are the lists for clusters without GPUs: Python 3.11 and the
versions of requirements.txt.

`baton images REGISTRY` builds and pushes them, and pins their digests in Flyte's configuration file:

    images:
      baton-data: REGISTRY/baton-data@sha256:…

`pyflyte --config FILE run --remote …` takes them from there and registers them with the workflow, so that a pod that
compiles a dynamic DAG finds them by name. Without that section, BATON_IMAGE_REGISTRY (such as `localhost:30000`) names
the registry, and tags are derived from the lists.
"""

import os
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path

from blake3 import blake3
from flytekit import ImageSpec
from flytekit.image_spec.image_spec import ImageBuildEngine

from baton.images.builder import DOCKERFILE, DockerBuilder
from baton.infra.commands import command
from baton.infra.errors import UserError
from baton.infra.pod import this_pod

BUILDER = "baton"  # Flyte's name for it
FAMILIES = ("data", "train", "serve", "post-train")


class NoImage(UserError):
    """No image is configured for a stage's pods."""


ImageBuildEngine.register(BUILDER, DockerBuilder(), priority=0)  # not the default of a user's own ImageSpec


class FamilyImage(ImageSpec):
    """An image that is looked up by name in Flyte's image configuration."""

    @property
    def id(self) -> str:
        """The name that it is looked up by. Flyte's own id is a hash that includes the registry, which differs in a
        pod."""
        return str(self.name)

    @cached_property
    def tag(self) -> str:
        if this_pod():
            raise NoImage(f"{self.name}: missing in this pod's image configuration; register the workflow again")
        flytekit_tag = ImageSpec(**{field.name: getattr(self, field.name) for field in fields(self)}).tag
        return blake3(f"{flytekit_tag} {DOCKERFILE.read_text()}".encode()).hexdigest()[:16]

    def exist(self) -> bool:
        """Return whether its registry has it. Raises RegistryError, NoImage."""
        if not self.registry:
            raise no_images(self.name)
        from baton.infra.image_registry import digest_of  # pods do not have it: .flyteignore

        return digest_of(self.image_name()) is not None


def no_images(names: str) -> NoImage:
    """Return the error that pods have no image, with the commands that provide one."""
    build, run = command("baton images REGISTRY"), command("pyflyte --config FILE run --remote --copy all …")
    return NoImage(
        f"{names}: no image is configured for these pods. `{build}` builds and pushes the images and pins them in "
        f"Flyte's configuration file; then: {run} (or name each: --image baton-data=REGISTRY/IMAGE@DIGEST)"
    )


def requirement_list(family: str) -> Path:
    """The pinned list, relative to the current directory: an image's identity must not depend on the clone's path."""
    return Path(os.path.relpath(Path(__file__).with_name(f"{family}.txt")))


def without_cuda(image: FamilyImage) -> FamilyImage:
    """The image of the same family for machines without GPUs: the versions of requirements.txt, on its Python."""
    family = str(image.name).removeprefix("baton-")
    return replace(image, requirements=str(requirement_list(f"{family}-cpu")), python_version="3.11")


def _image(family: str, apt_packages: list[str]) -> FamilyImage:
    return FamilyImage(
        name=f"baton-{family}",
        builder=BUILDER,
        platform="linux/amd64",
        python_version="3.12",
        requirements=str(requirement_list(family)),
        apt_packages=apt_packages,
        registry=os.environ.get("BATON_IMAGE_REGISTRY"),
    )


# Triton compiles launchers on a kernel's first use; rewards run code in bubblewrap; vLLM's CPU build loads libnuma. The
# three families have all of these, so that the layers above are the same.
ENGINES = ["build-essential", "bubblewrap", "libnuma1"]

DATA = _image("data", [])
TRAIN = _image("train", ENGINES)
SERVE = _image("serve", ENGINES)
POST_TRAIN = _image("post-train", ENGINES)
BY_FAMILY = dict(zip(FAMILIES, (DATA, TRAIN, SERVE, POST_TRAIN), strict=True))

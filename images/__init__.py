"""The container image of each stage family, for stages that run on rented machines or in a cluster's pods.

An image is Python 3.12 and a complete pinned list, `images/<family>.txt`, which `uv pip compile` makes
of the short `images/<family>.in` (`make lock`). CUDA comes from the lists too: the PyPI builds of
torch and vLLM bring their own, so a node needs no more than NVIDIA's driver. On a laptop nothing here
is built or even read: Flyte asks for an image only when a workflow is registered.

`python -m images REGISTRY` builds them, pushes them and pins their digests in Flyte's configuration file:

    images:
      baton-data: REGISTRY/baton-data@sha256:…

`pyflyte --config FILE run --remote …` takes them from there, and they travel with the registration: a pod
whose DAG is made in it looks them up by name. Without that section, BATON_IMAGE_REGISTRY (such as
`localhost:30000`) says where the images are, by tags that are made of the lists.
"""

import os
from dataclasses import fields
from functools import cached_property
from pathlib import Path

from flytekit import ImageSpec

from infra.errors import Stopped
from infra.home import QUIET
from infra.pod import this_pod

PYTHON = "3.12"
FAMILIES = ("data", "train", "serve", "post-train")


class NoImage(Stopped):
    """Nothing says which image a pod has."""


class FamilyImage(ImageSpec):
    """An image that Flyte's image configuration has by its name."""

    @property
    def id(self) -> str:
        """What it is looked up by. Flyte's own is a hash, with the registry in it, which is another in a pod."""
        return str(self.name)

    @cached_property
    def tag(self) -> str:
        if this_pod():
            raise NoImage(f"{self.name}: not in the image configuration that this pod was started with; register again")
        return str(ImageSpec(**{field.name: getattr(self, field.name) for field in fields(self)}).tag)

    def exist(self) -> bool | None:
        if not self.registry:
            raise NoImage(NO_IMAGES.format(self.name))
        found: bool | None = super().exist()
        return found


NO_IMAGES = (
    "{}: nothing says which image a pod has. `python -m images REGISTRY` builds and pushes the images and pins them in "
    "Flyte's configuration file; then: pyflyte --config FILE run --remote --copy all … (or, one by one: --image "
    "baton-data=REGISTRY/IMAGE@DIGEST)"
)


def requirement_list(family: str) -> Path:
    """The pinned list, relative to the current directory: an image's identity must not depend on
    where the clone lies."""
    return Path(os.path.relpath(Path(__file__).with_name(f"{family}.txt")))


def _image(family: str, apt_packages: list[str]) -> FamilyImage:
    return FamilyImage(
        name=f"baton-{family}",
        python_version=PYTHON,
        platform="linux/amd64",
        requirements=str(requirement_list(family)),
        pip_extra_args="--no-deps",  # the list is complete; nothing else may slip in
        apt_packages=apt_packages,
        env=QUIET,
        registry=os.environ.get("BATON_IMAGE_REGISTRY"),
    )


COMPILER = ["build-essential"]  # Triton compiles its launchers when a kernel is first used

DATA = _image("data", [])
TRAIN = _image("train", COMPILER)
SERVE = _image("serve", COMPILER)
POST_TRAIN = _image("post-train", COMPILER)
BY_FAMILY = dict(zip(FAMILIES, (DATA, TRAIN, SERVE, POST_TRAIN), strict=True))

"""The container image of each stage family, for stages that run on rented machines.

An image is Python 3.12 and a complete pinned list, `images/<family>.txt`, which `uv pip compile` makes
of the short `images/<family>.in` (`make images`). CUDA comes from the lists too: the PyPI builds of
torch and vLLM bring their own, so a node needs no more than NVIDIA's driver. On a laptop nothing here
is built or even read: Flyte asks for an image only when a workflow is registered.

`BATON_IMAGE_REGISTRY` (such as `localhost:30000`) says where the images are pushed; unset, they stay
with the Docker that built them.
"""

import os
from pathlib import Path

from flytekit import ImageSpec

from infra.home import QUIET

PYTHON = "3.12"
FAMILIES = ("data", "train", "serve", "post-train")


def requirement_list(family: str) -> Path:
    """The pinned list, relative to the current directory: an image's identity must not depend on
    where the clone lies."""
    return Path(os.path.relpath(Path(__file__).with_name(f"{family}.txt")))


def _image(family: str, apt_packages: list[str]) -> ImageSpec:
    return ImageSpec(
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

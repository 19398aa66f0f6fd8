"""Build a family's image from images/Dockerfile with Docker, and push it.

In place of flytekit's builder, which needs three public registries (uv's image, micromamba's, BuildKit's frontend)
beside the base image's, and buildx for its `--push`.
"""

import os
import subprocess
from pathlib import Path

from flytekit import ImageSpec
from flytekit.image_spec.image_spec import ImageSpecBuilder

from infra.errors import Stopped
from infra.tracking.redact import redact_text

DOCKERFILE = Path(__file__).with_name("Dockerfile")
# pip's own variables
INDEX, MORE, LINKS = SOURCES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
TORCH_CPU = "https://download.pytorch.org/whl/cpu"  # PyPI has the CUDA build alone
# Families that have layers in common: Dockerfile's argument, and whose lists' common packages are in that layer
SHARED = {"SHARED": ("train", "serve", "post-train"), "SHARED_TOO": ("serve", "post-train")}


class NotBuilt(Stopped):
    """An image could not be built or pushed."""


class DockerBuilder(ImageSpecBuilder):
    """Flyte's builder of FamilyImages."""

    def build_image(self, image: ImageSpec) -> str:
        """Raises NotBuilt."""
        name, packages = str(image.image_name()), Path(str(image.requirements))
        family, cpu = packages.stem.removesuffix("-cpu"), packages.stem.endswith("-cpu")
        arguments = {
            "LIST": packages.name,
            "APT_PACKAGES": " ".join(image.apt_packages or ()),
            "PYTHON": str(image.python_version),
        }
        for argument, families in SHARED.items():
            if family in families:
                arguments[argument] = " ".join(f"{each}{'-cpu' if cpu else ''}.txt" for each in families)
        arguments |= {"BASE": str(image.base_image)} if image.base_image else {}
        sources = {variable: os.environ.get(variable, "") for variable in SOURCES}
        sources = {variable: value for variable, value in sources.items() if "://" in value}  # a build sees no folder
        if cpu and not sources.keys() & {MORE, LINKS}:
            sources[MORE] = TORCH_CPU
        for variable, value in sources.items():
            if redact_text(value) != value:
                raise NotBuilt(
                    f"{variable}: has credentials, which would be in the image's history; use a mirror without"
                )
        words = [word for pair in (arguments | sources).items() for word in ("--build-arg", "=".join(pair))]
        _docker("build", "--tag", name, "--platform", str(image.platform), *words, str(DOCKERFILE.parent))
        _docker("push", name)
        return name


def _docker(*words: str) -> None:
    """Run Docker's client, which prints what it does. Raises NotBuilt."""
    try:
        ended = subprocess.run(["docker", *words], check=False)
    except OSError as error:
        raise NotBuilt(
            f"docker: cannot be started ({error.strerror}); install Docker's client and start its daemon"
        ) from error
    if ended.returncode:
        raise NotBuilt(
            f"docker {words[0]}: exit code {ended.returncode}; see above. Start Docker's daemon if it is down, "
            "`docker login` for a private registry, --base IMAGE and PIP_INDEX_URL where public ones are out of reach"
        )

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
INDEX = "PIP_INDEX_URL"  # pip's own variable


class NotBuilt(Stopped):
    """An image could not be built or pushed."""


class DockerBuilder(ImageSpecBuilder):
    """Flyte's builder of FamilyImages."""

    def build_image(self, image: ImageSpec) -> str:
        """Raises NotBuilt."""
        name, list_of_packages = str(image.image_name()), Path(str(image.requirements)).name
        arguments = {"LIST": list_of_packages, "APT_PACKAGES": " ".join(image.apt_packages or ())}
        arguments |= {"BASE": str(image.base_image)} if image.base_image else {}
        words = [word for pair in arguments.items() for word in ("--build-arg", "=".join(pair))]
        if index := os.environ.get(INDEX):
            if redact_text(index) != index:
                raise NotBuilt(f"{INDEX}: has credentials, which would be in the image's history; use a mirror without")
            words += ["--build-arg", INDEX]  # its value is taken from the environment
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

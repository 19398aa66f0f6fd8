"""Build a family's image from images/Dockerfile with Docker, and push it.

In place of flytekit's builder, which needs three public registries (uv's image, micromamba's, BuildKit's frontend)
beside the base image's, and buildx for its `--push`.
"""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from flytekit import ImageSpec
from flytekit.image_spec.image_spec import ImageSpecBuilder

from baton.infra.errors import UserError
from baton.infra.tracking.redact import redact_text

DOCKERFILE = Path(__file__).with_name("Dockerfile")
# pip's variables
INDEX, MORE, LINKS = SOURCES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
TORCH_CPU = "https://download.pytorch.org/whl/cpu"  # PyPI has the CUDA build alone
# Layers that images share: Dockerfile's argument, and the families whose lists' common packages are in that layer
SHARED = {"SHARED": ("train", "serve", "post-train"), "SHARED_TOO": ("serve", "post-train")}


class NotBuilt(UserError):
    """An image could not be built or pushed."""


class DockerBuilder(ImageSpecBuilder):
    """Flyte's builder of FamilyImages."""

    def build_image(self, image: ImageSpec) -> str:
        """Build an image with Docker. Raises NotBuilt."""
        name, packages = str(image.image_name()), Path(str(image.requirements))
        arguments = {
            "LIST": packages.name,
            "APT_PACKAGES": " ".join(image.apt_packages or ()),
            "PYTHON": str(image.python_version),
        }
        arguments |= {"BASE": str(image.base_image)} if image.base_image else {}
        sources = {variable: os.environ.get(variable, "") for variable in SOURCES}
        sources = {variable: value for variable, value in sources.items() if "://" in value}  # a build sees no folder
        if packages.stem.endswith("-cpu") and not sources.keys() & {MORE, LINKS}:
            sources[MORE] = TORCH_CPU
        for variable, value in sources.items():
            if redact_text(value) != value:
                raise NotBuilt(
                    f"{variable}: has credentials, which would be in the image's history; use a mirror without"
                )
        with TemporaryDirectory(prefix="baton-image-") as folder:
            context = Path(folder)
            shutil.copy(packages, context)
            arguments |= {argument: _write_shared(context, argument, packages) for argument in SHARED}
            options = [word for pair in (arguments | sources).items() for word in ("--build-arg", "=".join(pair))]
            options += ["--tag", name, "--platform", str(image.platform), "--file", str(DOCKERFILE), str(context)]
            _docker("build", *options)
        _docker("push", name)
        return name


def _write_shared(context: Path, argument: str, packages: Path) -> str:
    """Write the packages that the lists of a shared layer's families have in common; the file's name in the context.
    It is empty if the image has no part in that layer."""
    family, cpu, _ = packages.stem.partition("-cpu")
    lists = [packages.with_name(f"{each}{cpu}.txt") for each in SHARED[argument]] if family in SHARED[argument] else []
    lines = [path.read_text().splitlines() for path in lists]
    common = set(lines[0]).intersection(*lines) if lines else set[str]()
    path = context / f"{argument.lower()}.txt"
    path.write_text("".join(f"{line}\n" for line in sorted(common)))
    return path.name


def _docker(*arguments: str) -> None:
    """Run Docker's client, which prints what it does. Raises NotBuilt."""
    try:
        ended = subprocess.run(["docker", *arguments], check=False)
    except OSError as error:
        raise NotBuilt(
            f"docker: cannot be started ({error.strerror}); install Docker's client and start its daemon"
        ) from error
    if ended.returncode:
        raise NotBuilt(
            f"docker {arguments[0]}: exit code {ended.returncode}; see above. Start Docker's daemon if it is down, "
            "`docker login` for a private registry, --base IMAGE and PIP_INDEX_URL where public ones are out of reach"
        )

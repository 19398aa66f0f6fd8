"""The environment that `make` installs is complete and consistent, and agrees with the list."""

import os
import re
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

from tests.source import ROOT, requirements

LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")  # see requirements.in


def torch_cpu() -> list[str]:
    """Return uv's options for the index of torch's CPU builds."""
    folder = os.environ.get("PIP_FIND_LINKS")
    return ["--find-links", folder] if folder else ["--torch-backend", "cpu"]


def test_what_is_installed_is_what_the_list_says() -> None:
    pinned = requirements(ROOT / ("requirements.txt" if sys.version_info < (3, 12) else "images/gpu.txt"))
    assert {name: f"=={version(name)}" for name in pinned} == pinned


def test_the_list_is_what_the_direct_requirements_resolve_to() -> None:
    words = ["--quiet", "--no-header", "--no-annotate", "--python-version", "3.11", *torch_cpu()]
    words += ["requirements.in", "--constraints", "requirements.txt"]
    words += [word for name in LEFT_OUT for word in ("--no-emit-package", name)]
    uv = Path(sys.executable).with_name("uv")
    ended = subprocess.run([uv, "pip", "compile", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    resolved = [line for line in ended.stdout.splitlines() if not line.startswith("#") and line]
    pinned = requirements(ROOT / "requirements.txt")
    assert not pinned.keys() & set(LEFT_OUT)
    assert sorted(resolved) == sorted(f"{package}{pin}" for package, pin in pinned.items())


def test_the_environment_of_a_gpu_machine_runs_the_same_flyte() -> None:
    assert requirements(ROOT / "images/gpu.txt")["flytekit"] == requirements(ROOT / "requirements.txt")["flytekit"]


def test_trl_supports_the_vllm_that_is_installed() -> None:
    """TRL warns about versions that it does not support."""
    from trl.import_utils import is_vllm_available

    with warnings.catch_warnings(action="error"):
        is_vllm_available()


def test_no_list_says_where_it_was_made() -> None:
    for path in [ROOT / "requirements.txt", *(ROOT / "images").glob("*.txt")]:
        assert not re.search(r"://|--index|--find-links| /\w", path.read_text()), path.name

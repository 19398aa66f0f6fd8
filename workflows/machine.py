"""What a recipe's run needs of this machine beside memory: a GPU where the recipe names one, a driver and a compiler
for it, the Hugging Face hub where something comes from there. Looked at when a run is started here, and told by
`python -m workflows.plan`, whose recipe may be meant for another machine. Nothing heavy is imported."""

import ctypes
import importlib.util
import os
import re
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from infra.progress import say
from tasks.convert.adopt_spec import AdoptSpec
from tasks.data.source_spec import HuggingFaceSource, is_path
from tasks.evaluate.spec import EvaluateSpec
from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.accelerators import BY_NAME, accelerator
from tasks.pretrain.spec import PretrainSpec
from tasks.serve.spec import ServeSpec
from tasks.spec import Problem, StageSpec
from workflows.given import Given, runs_on_a_cluster
from workflows.recipe import Recipe, given_of
from workflows.recipe_error import RecipeError

R = TypeVar("R", bound=Recipe)

ON_A_GPU = (PretrainSpec, PostTrainSpec, EvaluateSpec, ServeSpec)  # the stages that use one where it is
ONE_GPU = (PostTrainSpec, EvaluateSpec)  # those whose process uses only one
# the oldest driver for each CUDA, by its release notes (table 2: minor versions are compatible)
DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
COMPILERS = ("cc", "gcc", "clang")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # either forbids the hub; the next one data sets alone
DATASETS_OFFLINE = "HF_DATASETS_OFFLINE"
YES = ("1", "ON", "YES", "TRUE")  # huggingface_hub's


def checked_here(validate: Callable[[Any], R]) -> Callable[[Any], R]:
    """A recipe's validation, and what its run asks of this machine. Raises RecipeError."""

    def both(content: Any) -> R:
        found: list[Problem] = []
        try:
            recipe = validate(content)
        except RecipeError as error:
            if error.recipe is None:
                raise
            recipe, found = cast(R, error.recipe), error.problems
        given = given_of(recipe)
        told = {each.path for each in found}
        if found := [*found, *(each for each in machine_problems(given) if each.path not in told)]:
            raise RecipeError(found, recipe)
        for words in remarks(given):
            say(words)
        return recipe

    return both


def machine_problems(given: Given) -> list[Problem]:
    """What this machine lacks for the stages that run here."""
    if runs_on_a_cluster():
        return []
    found = [*_named_gpu(given), *offline_problems(given, os.environ)]
    if (stage := _first_on_a_gpu(given)) and given.machine.gpus and (cuda := cuda_of_torch()):
        found += driver_problems(stage, cuda, cuda_of_driver())
        found += compiler_problems(stage, Path(sysconfig.get_path("include")))
    return found


def remarks(given: Given) -> Iterator[str]:
    """What a person should know of this machine, and that stops nothing."""
    gpus, stages = given.machine.gpus, _here(given)
    if gpus and not cuda_of_torch() and _first_on_a_gpu(given):
        yield f"this machine has {gpus[0]}, and torch here is its build for CPUs, which leaves it idle: {CUDA_BUILD}"
    alone = [path for path, spec in stages.items() if isinstance(spec, ONE_GPU)]
    if len(gpus) > 1 and alone:
        yield f"{len(gpus)} GPUs are visible; {', '.join(alone)} use one, the first (CUDA_VISIBLE_DEVICES chooses it)"


# -- a GPU, its driver, a compiler ---------------------------------------------------------------------

CUDA_BUILD = "`make demo TORCH_BACKEND=cuda` installs the other one"


def _here(given: Given) -> dict[str, StageSpec]:
    return {path: spec for path, spec in given.stages().items() if not spec.placement}


def _first_on_a_gpu(given: Given) -> str | None:
    return next((path for path, spec in _here(given).items() if isinstance(spec, ON_A_GPU)), None)


def _named_gpu(given: Given) -> Iterator[Problem]:
    """`layout.device` says what the pretraining is meant for."""
    spec = given.specs.get("pretrain")
    if spec is None or spec.placement or spec.layout.device not in BY_NAME:
        return
    wanted, gpus = BY_NAME[spec.layout.device], given.machine.gpus
    here = accelerator(gpus[0]) if gpus else None
    if not gpus:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"CUDA_VISIBLE_DEVICES={hidden!r} hides all of them" if hidden is not None else "its driver shows none"
        allowed = f"a machine with that GPU: {why} here. Run it there, or add `placement:` to pretrain, or leave "
        yield Problem("pretrain.layout.device", wanted.name, f"{allowed}layout.device out to compute on the CPU")
    elif not cuda_of_torch():
        allowed = f"torch's build for GPUs: the one that is installed is for CPUs; {CUDA_BUILD}"
        yield Problem("pretrain.layout.device", wanted.name, allowed)
    elif here and here.memory_gb < wanted.memory_gb:
        allowed = f"{here.name}, which is what this machine has: the check then names a layout that fits it"
        yield Problem("pretrain.layout.device", wanted.name, allowed)
    elif spec.layout.processes > len(gpus):
        allowed = f"at most the GPUs that are visible here ({len(gpus)}), one for each process"
        yield Problem("pretrain.layout.processes", spec.layout.processes, allowed)


def driver_problems(stage: str, torch: str, driver: int | None) -> Iterator[Problem]:
    """`torch`: the CUDA that it was built for, "13.0"; `driver`: the newest that the driver has, 12040 for 12.4."""
    major = int(torch.partition(".")[0])
    if driver is not None and driver // 1000 >= major:
        return
    least = f"NVIDIA's driver {DRIVERS[major]}" if major in DRIVERS else "a newer NVIDIA driver"
    has = f"the one here goes to CUDA {driver // 1000}.{driver % 1000 // 10}" if driver else "libcuda.so.1 is not here"
    allowed = f"{least} or newer, which torch's CUDA {torch} needs; {has}: update it, or set CUDA_VISIBLE_DEVICES="
    yield Problem(stage, "on", f"{allowed} to compute on the CPU")


def compiler_problems(stage: str, include: Path) -> Iterator[Problem]:
    """Triton compiles the launchers of its kernels with C, at the first use of each. `include`: Python's headers."""
    if not (os.environ.get("CC") or any(map(shutil.which, COMPILERS))):
        allowed = "needs a C compiler for Triton's kernels on the GPU; there is none: `apt-get install gcc`, or CC=…"
        yield Problem(stage, "on", allowed)
    if not (include / "Python.h").is_file():
        version = sysconfig.get_python_version()
        allowed = f"needs Python.h for Triton's kernels on the GPU, in {include}: `apt-get install python{version}-dev`"
        yield Problem(stage, "on", allowed)


def cuda_of_torch() -> str | None:
    """The CUDA that torch was built for, by its version.py; None: its build for CPUs (or ROCm)."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    found = re.search(r"^cuda\b[^=\n]*= '([\d.]+)'", (Path(spec.origin).parent / "version.py").read_text(), re.M)
    return found[1] if found else None


def cuda_of_driver() -> int | None:
    """1000 × major + 10 × minor of the newest CUDA that libcuda has, a compatibility package's included (NVIDIA's
    CUDA driver API, cuDriverGetVersion); None: there is no libcuda. It initializes nothing."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


# -- the hub ------------------------------------------------------------------------------------------


def offline_problems(given: Given, environment: Mapping[str, str]) -> Iterator[Problem]:
    """What is of the hub, and was not downloaded before, where the hub is forbidden."""
    forbidden = [name for name in OFFLINE if environment.get(name, "").upper() in YES]
    of_data = [name for name in (*forbidden, DATASETS_OFFLINE) if environment.get(name, "").upper() in YES]
    for path, kind, name in _of_the_hub(given):
        by = of_data if kind == "dataset" else forbidden
        if by and not _downloaded(kind, name, environment):
            files = "its files (save_to_disk, JSONL, Parquet)" if kind == "dataset" else "a folder"
            allowed = f"{files}, or the hub, which {by[0]}={environment[by[0]]} forbids: unset it to download {name}"
            yield Problem(path, name, allowed)


def _of_the_hub(given: Given) -> Iterator[tuple[str, str, str]]:
    """(path in the recipe, "model" or "dataset", name) of what the stages here read from the hub."""
    for path, spec in _here(given).items():
        source = getattr(spec, "source", None)
        rows = getattr(spec, "huggingface", None)
        if isinstance(source, HuggingFaceSource) and not is_path(source.name):
            yield f"{path}.source.name", "dataset", source.name
        if rows and not is_path(rows.name):
            yield f"{path}.huggingface.name", "dataset", rows.name
        for field in ("model", "existing"):
            name = getattr(spec, field, None) if isinstance(spec, AdoptSpec) or field == "existing" else None
            if isinstance(name, str) and not is_path(name) and (name.startswith("hf://") or "://" not in name):
                yield f"{path}.{field}", "model", name


def _downloaded(kind: str, name: str, environment: Mapping[str, str]) -> bool:
    """Whether the hub's cache, or that of `datasets`, has something of it."""
    home = Path(environment.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(environment.get("HF_HUB_CACHE", home / "hub"))
    prepared = Path(environment.get("HF_DATASETS_CACHE", home / "datasets"))
    places = [hub / f"{kind}s--{name.replace('/', '--')}", prepared / name.replace("/", "___")]
    return any(place.is_dir() for place in places)

"""Check what a recipe's run requires of this machine besides memory: the GPU that the recipe names, its driver and a
compiler, the tracking store's address, access to the Hugging Face hub. Problems stop a run; `baton plan`
only prints them, since its recipe may be meant for another machine. Imports nothing heavy."""

import ctypes
import importlib.util
import os
import re
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from baton.infra.paths import home_path
from baton.infra.progress import say
from baton.infra.storage.hub import Consent, Repository, check
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.store import ADDRESSES, HOME_OF_STORE, can_hold_store, is_address
from baton.tasks.convert.load_hf_spec import ask_hub
from baton.tasks.core.spec import Problem, StageSpec
from baton.tasks.data.source_spec import HuggingFaceSource, is_path
from baton.tasks.hardware.accelerators import BY_NAME, accelerator
from baton.tasks.publish.spec import PublishSpec
from baton.workflows.checks.run_context import RunContext, runs_on_a_cluster
from baton.workflows.checks.table import CHECKS, checked
from baton.workflows.checks.warnings import warnings_of
from baton.workflows.recipe import Recipe, context_of

R = TypeVar("R", bound=Recipe)

# the oldest driver for each CUDA version, by the release notes (table 2: minor versions are compatible)
DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
COMPILERS = ("cc", "gcc", "clang")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # either disables the hub; the next one datasets only
DATASETS_OFFLINE = "HF_DATASETS_OFFLINE"
YES = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads them


def checked_here(recipe: R) -> R:
    """Return the recipe, if no check finds a problem and this machine lacks nothing for its run. Raises RecipeError."""
    checked(recipe, machine_problems)
    context = context_of(recipe)
    if asks_hub(context):
        checked(recipe, machine_problems)
    for remark in remarks(context):
        say(remark)
    for warning in warnings_of(context):
        say(f"warning: {warning}")
    say(f"checked before the run: {', '.join(CHECKS)}, this machine")
    return recipe


def machine_problems(context: RunContext) -> list[Problem]:
    """Requirements of the stages on this machine that it lacks."""
    if runs_on_a_cluster():
        return []
    problems = [*_named_gpu(context), *offline_problems(context, os.environ), *store_problems(os.environ)]
    problems += publishing_problems(context)
    if (stage := _first_on_a_gpu(context)) and context.machine.gpus and (cuda := cuda_of_torch()):
        problems += driver_problems(stage, cuda, cuda_of_driver())
        problems += compiler_problems(stage, Path(sysconfig.get_path("include")))
    return problems


def remarks(context: RunContext) -> Iterator[str]:
    """Notes about this machine that do not stop a run."""
    gpus, stages = context.machine.gpus, _local_stages(context)
    if gpus and not cuda_of_torch() and _first_on_a_gpu(context):
        yield f"this machine has {gpus[0]}, but torch here is a CPU build and leaves it idle: {CUDA_BUILD}"
    alone = [path for path, spec in stages.items() if spec.uses_gpus and not spec.exact_devices and spec.devices() == 1]
    if len(gpus) > 1 and alone:
        yield f"{len(gpus)} GPUs are visible; {', '.join(alone)} use only the first (CUDA_VISIBLE_DEVICES selects it)"


# -- a GPU, its driver, a compiler ---------------------------------------------------------------------

CUDA_BUILD = "`make demo TORCH_BACKEND=cuda` installs the CUDA build"


def _local_stages(context: RunContext) -> dict[str, StageSpec]:
    return {path: spec for path, spec in context.stages().items() if not spec.placement}


def _first_on_a_gpu(context: RunContext) -> str | None:
    return next((path for path, spec in _local_stages(context).items() if spec.uses_gpus), None)


def _named_gpu(context: RunContext) -> Iterator[Problem]:
    """Check that this machine has the GPUs that `layout.device` and `layout.processes` ask for."""
    spec = context.specs.get("pretrain")
    if spec is None or spec.placement or spec.layout.device not in BY_NAME:
        return
    device, gpus = BY_NAME[spec.layout.device], context.machine.gpus
    gpu = accelerator(gpus[0]) if gpus else None
    if not gpus:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"CUDA_VISIBLE_DEVICES={hidden!r} hides all of them" if hidden is not None else "its driver shows none"
        allowed = f"a machine with that GPU: {why} here. Run it there, add `placement:` to pretrain, or leave out "
        yield Problem("pretrain.layout.device", device.name, f"{allowed}layout.device to compute on the CPU")
    elif not cuda_of_torch():
        allowed = f"torch's CUDA build: the installed one is for CPUs; {CUDA_BUILD}"
        yield Problem("pretrain.layout.device", device.name, allowed)
    elif gpu and gpu.memory_gb < device.memory_gb:
        allowed = f"{gpu.name}, this machine's GPU: the check then suggests a layout that fits it"
        yield Problem("pretrain.layout.device", device.name, allowed)
    elif spec.layout.processes > len(gpus):
        allowed = f"at most the GPUs visible here ({len(gpus)}), one for each process"
        yield Problem("pretrain.layout.processes", spec.layout.processes, allowed)


def driver_problems(stage: str, torch: str, driver: int | None) -> Iterator[Problem]:
    """Check the driver. `torch`: the CUDA version that it was built for, "13.0"; `driver`: the newest one that the
    driver supports, 12040 for 12.4."""
    major = int(torch.partition(".")[0])
    if driver is not None and driver // 1000 >= major:
        return
    least = f"NVIDIA's driver {DRIVERS[major]}" if major in DRIVERS else "a newer NVIDIA driver"
    has = f"the one here supports CUDA {driver // 1000}.{driver % 1000 // 10}" if driver else "libcuda.so.1 is missing"
    allowed = f"{least} or newer, required by torch's CUDA {torch}; {has}: update it, or set CUDA_VISIBLE_DEVICES="
    yield Problem(stage, "on", f"{allowed} to compute on the CPU")


def compiler_problems(stage: str, include: Path) -> Iterator[Problem]:
    """Check for a C compiler, with which Triton compiles its kernels' launchers on first use. `include`: the folder of
    Python.h."""
    if not (os.environ.get("CC") or any(map(shutil.which, COMPILERS))):
        allowed = "needs a C compiler for Triton's kernels on the GPU; there is none: `apt-get install gcc`, or CC=…"
        yield Problem(stage, "on", allowed)
    if not (include / "Python.h").is_file():
        version = sysconfig.get_python_version()
        allowed = f"needs Python.h for Triton's kernels on the GPU, in {include}: `apt-get install python{version}-dev`"
        yield Problem(stage, "on", allowed)


def cuda_of_torch() -> str | None:
    """The CUDA version that torch was built for, from its version.py; None for a CPU (or ROCm) build."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    match = re.search(r"^cuda\b[^=\n]*= '([\d.]+)'", (Path(spec.origin).parent / "version.py").read_text(), re.M)
    return match[1] if match else None


def cuda_of_driver() -> int | None:
    """1000 × major + 10 × minor of the newest CUDA that libcuda supports, including a compatibility package's (NVIDIA's
    CUDA driver API, cuDriverGetVersion); None if there is no libcuda. Initializes nothing."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def store_problems(environment: Mapping[str, str]) -> Iterator[Problem]:
    """Problems with the address of the tracking store, which is opened only when there is something to record."""
    if (uri := environment.get("MLFLOW_TRACKING_URI")) and not is_address(uri):
        allowed = f"{ADDRESSES}; or unset it to use the SQLite file in Baton's home"
        yield Problem("MLFLOW_TRACKING_URI", redact_text(uri), allowed)
    if not uri and not can_hold_store(home_path()):
        yield Problem("BATON_HOME", str(home_path()), HOME_OF_STORE)


# -- the hub ------------------------------------------------------------------------------------------


def offline_problems(context: RunContext, environment: Mapping[str, str]) -> Iterator[Problem]:
    """Models and datasets of the hub that are not downloaded yet while the hub is disabled."""
    forbidden = [name for name in OFFLINE if environment.get(name, "").upper() in YES]
    of_data = [name for name in (*forbidden, DATASETS_OFFLINE) if environment.get(name, "").upper() in YES]
    for path, kind, name in of_the_hub(_local_stages(context)):
        by = of_data if kind == "dataset" else forbidden
        if by and not _downloaded(kind, name, environment):
            files = "its files (save_to_disk, JSONL, Parquet)" if kind == "dataset" else "a folder"
            allowed = f"{files}, or the hub, which {by[0]}={environment[by[0]]} disables: unset it to download {name}"
            yield Problem(path, name, allowed)


def publishing_problems(context: RunContext) -> Iterator[Problem]:
    """Reasons for which the last stage could not push to the repository that the recipe names."""
    spec = _local_stages(context).get("publish")
    if isinstance(spec, PublishSpec) and spec.hub:
        repository = Repository("model", spec.hub)
        if refusal := check(repository, Consent(not spec.private, spec.overwrite)):
            yield Problem("publish.hub", spec.hub, refusal.removeprefix(f"{repository}: "))


def asks_hub(context: RunContext) -> bool:
    """Ask the hub for the config.json of the models that the recipe starts from, whose shape the checks need. Returns
    whether any was asked for; if so, check again."""
    if any(os.environ.get(name, "").upper() in YES for name in OFFLINE):
        return False
    named = [context.specs[name] for name in ("start_from", "init_from") if name in context]
    unknown = [spec for spec in named if spec.is_on_hub() and spec.unread() is not None]
    for spec in unknown:
        ask_hub(spec.model, spec.revision)
    return bool(unknown)


def of_the_hub(stages: Mapping[str, StageSpec]) -> Iterator[tuple[str, str, str]]:
    """(path in the recipe, "model" or "dataset", name) of everything that these stages read from the hub."""
    for path, spec in stages.items():
        for inner, source in spec.by_path().items():
            if isinstance(source, HuggingFaceSource) and not is_path(source.name):
                yield f"{path}.{inner}.name", "dataset", source.name
        for field, name in spec.existing_models().items():
            if not is_path(name) and (name.startswith("hf://") or "://" not in name):
                yield f"{path}.{field}", "model", name


def _downloaded(kind: str, name: str, environment: Mapping[str, str]) -> bool:
    """Return whether the cache of the hub or of `datasets` has a model or dataset."""
    home = Path(environment.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(environment.get("HF_HUB_CACHE", home / "hub"))
    prepared = Path(environment.get("HF_DATASETS_CACHE", home / "datasets"))
    places = [hub / f"{kind}s--{name.replace('/', '--')}", prepared / name.replace("/", "___")]
    return any(place.is_dir() for place in places)

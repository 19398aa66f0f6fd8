"""Check that the hardware can run the pretraining, and that its memory and this machine's disk have room for it."""

import importlib.util
import itertools
import shutil
from collections.abc import Iterator

from baton.infra.paths import baton_home
from baton.infra.text import gigabytes, size
from baton.tasks.core.spec import Problem
from baton.tasks.hardware.accelerators import BY_NAME, accelerator
from baton.tasks.hardware.memory import Place, place_of
from baton.tasks.pretrain.layout import Layout, layouts
from baton.tasks.pretrain.memory import estimate
from baton.tasks.pretrain.spec import PretrainSpec
from baton.workflows.checks.run_context import (
    RunContext,
    devices_of,
    is_planned_for_another_machine,
    runs_on_a_cluster,
    vocabulary_of,
)

# bytes per parameter: bf16 weights, fp32 master weights and Adam's two moments; bf16 weights in an exported model
CHECKPOINT_BYTES = 2 + 4 + 4 + 4
MODEL_BYTES = 2
TUNING_BYTES = 4 + 4 + 4  # TRL's checkpoints: fp32 weights and Adam's two moments

RECOMPUTE = ("none", "selective", "full")
MORE_NODES = (1, 2, 4, 8)  # multiples of the nodes to try, in order


def hardware(context: RunContext) -> Iterator[Problem]:
    """Check that the layout's device is known, and that it or this machine has enough GPUs and the precision."""
    spec: PretrainSpec | None = context.specs.get("pretrain")
    if spec is None:
        return
    layout, gpus = spec.layout, context.machine.gpus
    if layout.device and layout.device not in BY_NAME:
        yield Problem("pretrain.layout.device", layout.device, f"one of {', '.join(BY_NAME)}")
        return
    if gpus and devices_of(context, spec) == [None] and layout.processes > len(gpus):
        allowed = (
            f"at most this machine's GPUs ({len(gpus)}), one for each process; or name another GPU in layout.device"
        )
        yield Problem("pretrain.layout.processes", layout.processes, allowed)
    if spec.precision == "fp8":
        for device in devices_of(context, spec):
            yield from _fp8(device, gpus)


def _fp8(device: str | None, gpus: tuple[str, ...]) -> list[Problem]:
    """Check for tensor cores with fp8, and for Transformer Engine where the run takes place."""
    if device is None and not gpus:
        why = "needs a GPU of NVIDIA's Hopper generation or newer, and this machine has none"
    elif (chip := BY_NAME.get(device) if device else accelerator(gpus[0])) and not chip.peak("fp8"):
        why = f"{chip.name} has no fp8 arithmetic; Hopper (H100, H200) and newer do"
    elif not (device or is_planned_for_another_machine() or importlib.util.find_spec("transformer_engine")):
        why = "needs Transformer Engine, which is not installed here (`pip install transformer-engine[pytorch]`)"
    else:
        return []
    return [Problem("pretrain.precision", "fp8", f"{why}; bf16 runs everywhere")]


def layout(context: RunContext) -> Iterator[Problem]:
    """Check that the layout can split the tokenizer's vocabulary, and a process's tensors fit wherever it may run."""
    spec: PretrainSpec | None = context.specs.get("pretrain")
    if spec is None or any(not problem.path.startswith("optimizer") for problem in spec.problems()):
        return  # reported by the spec
    vocabulary = vocabulary_of(context)
    if vocabulary is None:
        return
    if wrong := spec.layout_problems(vocabulary):
        yield from (problem.under("pretrain.layout") for problem in wrong)
        return
    for device in devices_of(context, spec):
        place = place_of(device, spec.layout.processes, context.machine)
        if place is None or place.has_room_for(needed := estimate(spec, vocabulary, place.kernels)):
            continue
        allowed = (
            f"needs {gigabytes(needed.total)} on each {place.name} ({gigabytes(place.capacity)}): "
            f"{needed.breakdown()}; " + _instead(spec, vocabulary, place)
        )
        yield Problem("pretrain.layout", spec.layout.name(), allowed)


def _instead(spec: PretrainSpec, vocabulary: int, place: Place) -> str:
    """Suggest a layout that fits."""
    layout = fitting(spec, vocabulary, place)
    if layout is None:
        return "no layout of it fits: use more or larger devices, shorter sequences or a smaller model"
    smaller = estimate(spec.model_copy(update={"layout": layout}), vocabulary, place.kernels)
    return f"use {layout.as_yaml()}, which needs {gigabytes(smaller.total)}"


def fitting(spec: PretrainSpec, vocab_size: int, place: Place) -> Layout | None:
    """The layout that fits and differs least, on the same number of nodes or a multiple of it. None if none fits."""
    wrong_with = spec.layout_check(vocab_size)
    for times in MORE_NODES:
        like = spec.layout.model_copy(update={"nodes": times * spec.layout.nodes})
        for candidate in sorted(_candidates(like, spec), key=like.distance):
            if wrong_with(candidate):
                continue
            if place.has_room_for(estimate(spec.model_copy(update={"layout": candidate}), vocab_size, place.kernels)):
                return candidate
    return None


def _candidates(like: Layout, spec: PretrainSpec) -> Iterator[Layout]:
    """Layouts with the same number of processes that take less memory; among equally near ones, the fastest first. A
    matrix is never split across nodes."""
    spreads = [
        spread
        for spread in layouts(like, spec.model)
        if spread.tensor <= like.processes and spread.virtual_pipeline <= like.virtual_pipeline
    ]
    choices = itertools.product(
        RECOMPUTE[RECOMPUTE.index(like.recompute) :],
        (True,) if like.distributed_optimizer else (True, False),
        [size for size in range(like.micro_batch, 0, -1) if like.micro_batch % size == 0],
        spreads,
    )
    for recompute, optimizer, micro_batch, spread in choices:
        changes = {"recompute": recompute, "distributed_optimizer": optimizer, "micro_batch": micro_batch}
        yield spread.model_copy(update=changes)


def disk(context: RunContext) -> list[Problem]:
    """Check that this machine's disk has room for the run's files."""
    spec: PretrainSpec | None = context.specs.get("pretrain")
    if spec is None or spec.layout.device or spec.placement or runs_on_a_cluster() or is_planned_for_another_machine():
        return []
    needed = estimated_bytes(context, spec.model.parameters(vocabulary_of(context) or 0))
    free = shutil.disk_usage(baton_home()).free
    if needed <= free:
        return []
    allowed = (
        f"about {size(needed)} will be written and {size(free)} are free in {baton_home()}: "
        "lower checkpoints.keep_last, make room, or set BATON_HOME to a larger disk"
    )
    return [Problem("pretrain.checkpoints.keep_last", spec.checkpoints.keep_last, allowed)]


def estimated_bytes(context: RunContext, parameters: int) -> int:
    """Approximate bytes that the run writes: checkpoints (one more while saving), and models."""
    spec = context.specs["pretrain"]
    checkpoints = (spec.checkpoints.keep_last + 1) * CHECKPOINT_BYTES
    tuned = len(context.tunings()) * context.specs.get("seeds", 1)
    models = MODEL_BYTES * (1 + tuned + ("publish" in context)) + 2 * TUNING_BYTES * bool(tuned)
    return int(parameters * (checkpoints + models))

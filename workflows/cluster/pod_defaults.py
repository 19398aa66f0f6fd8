"""Resources of a recipe's pods on a Flyte cluster, from the plan's estimates."""

from collections.abc import Iterator
from typing import TypeVar

from pydantic import BaseModel

from infra.pod_spec import PodSpec, Resources, in_bytes, in_gib
from tasks.core.spec import Problem
from tasks.pretrain.memory import CPU, GPU
from tasks.pretrain.spec import PretrainSpec
from workflows.checks.run_context import RunContext, model_of, need
from workflows.recipe.override import replaced

R = TypeVar("R", bound=BaseModel)

GIB = 1024**3
PROCESS = 2 * GIB  # Python, torch and libraries of an engine's process and of the pod's process that starts it
FLYTE = GIB // 2  # of the pod's process, where the engine is without torch
HOST = 8 * GIB  # host memory of a process with a GPU: CUDA context, NCCL buffers, batches
VLLM = 4 * GIB  # its processes and its default KV cache on a CPU
SPARE = 1.25  # for what an estimate leaves out: fragmentation, kernels' workspaces
CORES_OF_A_GPU = 4
LARGE = 300_000_000  # parameters from which a CPU would train or sample for days
UNKNOWN = 8 * 10**9  # parameters to leave host memory for beside a GPU, for a hub model of unknown size


def fitted(recipe: R, context: RunContext) -> R:
    """Fill in the estimated resources that the recipe's pods leave out."""
    for path, spec in context.stages().items():
        estimate = PodSpec(resources=resources(context, path))
        if estimate != PodSpec():
            recipe = replaced(recipe, [*path.split("."), "pod"], (spec.pod or PodSpec()).over(estimate))
    return recipe


def resources(context: RunContext, path: str) -> Resources:
    """The estimated resources of a stage's pod; empty: the stage's defaults apply."""
    spec, known, gpus = context.stages()[path], model_of(context), gpus_of(context, path)
    if path == "pretrain":
        return _of_pretraining(context, context.specs[path], gpus)
    if memory := spec.memory():
        return Resources(memory=in_gib(FLYTE + memory))
    if (known is None and not gpus) or not spec.uses_gpus:
        return Resources()
    weights = known[0].parameters(known[1]) if known else UNKNOWN
    memory = PROCESS + (VLLM + 4 * weights if spec.uses_vllm() else 0)  # bf16, as stored and as loaded
    memory += gpus * HOST or (spec.cpu_cache() - 1) * GIB
    if needed := need(context, spec, GPU if gpus else CPU):
        memory += spec.processes_each() * (needed.memory.host if gpus else int(SPARE * needed.memory.total))
    return Resources(cpu=gpus * CORES_OF_A_GPU or None, memory=in_gib(memory), gpu=gpus or None)


def gpus_of_all(context: RunContext) -> dict[str, int]:
    """GPUs of the stages that run in pods, by path; stages without any are left out."""
    pods = [path for path, spec in context.stages().items() if not spec.placement]
    return {stage: gpu for stage in pods if (gpu := resources(context, stage).gpu)}


def gpus_of(context: RunContext, path: str) -> int:
    """As the recipe says; else one for each of the stage's processes if the model needs GPUs."""
    spec = context.stages()[path]
    if spec.pod and spec.pod.resources.gpu is not None:
        return int(spec.pod.resources.gpu)
    if not _needs_gpus(context):
        return 0
    return spec.devices()


def _needs_gpus(context: RunContext) -> bool:
    """Whether the layout names a GPU, or the model is too large for a CPU. A hub model, whose size is not known here,
    counts as large."""
    if "pretrain" in context and context.specs["pretrain"].layout.device:
        return True
    if known := model_of(context):
        return known[0].parameters(known[1]) >= LARGE
    start = context.specs.get("start_from")
    return start is not None and "://" not in start.model and start.folder() is None


def _of_pretraining(context: RunContext, spec: PretrainSpec, gpus: int) -> Resources:
    """With GPUs, the host's memory holds the state that is being saved."""
    processes = spec.layout.processes
    needed = need(context, spec, GPU if gpus else CPU)
    if needed is None:
        return Resources(gpu=gpus or None)
    if not gpus:
        memory = processes * (PROCESS + int(SPARE * needed.memory.total))
        return Resources(cpu=max(2, processes), memory=in_gib(memory))
    saved = needed.memory.weights + needed.memory.optimizer
    return Resources(cpu=processes * CORES_OF_A_GPU, memory=in_gib(processes * (HOST + saved)), gpu=gpus)


def too_small(context: RunContext) -> Iterator[Problem]:
    """Problems of a pod that has less than pretraining requires."""
    spec = context.specs.get("pretrain")
    if spec is None or spec.pod is None:
        return
    asked, layout = spec.pod.resources, spec.layout
    gpus = gpus_of(context, "pretrain")
    needed = need(context, spec, GPU if gpus else CPU)
    if asked.gpu is not None and (layout.device or asked.gpu) and asked.gpu != layout.processes:
        allowed = f"{layout.processes}: one for each of layout.processes"
        yield Problem("pretrain.pod.resources.gpu", asked.gpu, allowed)
    if asked.memory and needed and not gpus:
        least = layout.processes * needed.memory.total
        if in_bytes(asked.memory) < least:
            allowed = f"at least {in_gib(least)}: {layout.processes} processes, each with {needed.memory.breakdown()}"
            yield Problem("pretrain.pod.resources.memory", asked.memory, allowed)

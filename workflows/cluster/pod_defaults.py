"""Resources of a recipe's pods on a Flyte cluster, from the plan's estimates."""

from collections.abc import Iterator
from typing import TypeVar

from pydantic import BaseModel

from baton.infra.pod_spec import PodSpec, Resources, in_bytes, in_gib, in_mib
from baton.infra.process.limits import MIB
from baton.tasks.core.spec import Problem, StageSpec
from baton.tasks.hardware.memory import CPU, GPU
from baton.tasks.pretrain.spec import PretrainSpec
from baton.workflows.checks.run_context import RunContext, model_of, need
from baton.workflows.recipe.override import replaced

R = TypeVar("R", bound=BaseModel)

GIB = 1024**3
PROCESS = 2 * GIB  # Python, torch and libraries of an engine's process and of the pod's process that starts it
FLYTE = GIB // 2  # of the pod's process, where the engine is without torch
LAUNCHER = 512 * MIB  # the same at the least: with 400 MiB it was killed before it could say anything, with 700 not
LIBRARIES = 768 * MIB  # of vLLM's processes, or CUDA's on each GPU; a tiny model's evaluation took 2.3 GiB
SURE = 0.25  # of an estimate: what is needed in any case
HOST = 8 * GIB  # host memory of a process with a GPU: CUDA context, NCCL buffers, batches
VLLM = 4 * GIB  # its processes and its default KV cache on a CPU
SPARE = 1.25  # for what an estimate leaves out: fragmentation, kernels' workspaces
CORES_OF_A_GPU = 4
LARGE = 300_000_000  # parameters from which a CPU would train or sample for days
UNKNOWN = 8 * 10**9  # parameters to leave host memory for beside a GPU, for a hub model of unknown size


def fitted(recipe: R, context: RunContext) -> R:
    """Fill in the estimated resources that the recipe's pods leave out, and the estimate of the memory."""
    for path, spec in context.stages().items():
        estimated = resources(context, path)
        estimate = PodSpec(resources=estimated, planned_memory=estimated.memory)
        if estimate != PodSpec():
            recipe = replaced(recipe, [*path.split("."), "pod"], (spec.pod or PodSpec()).over(estimate))
    return recipe


def resources(context: RunContext, path: str) -> Resources:
    """The estimated resources of a stage's pod; empty: the stage's defaults apply."""
    spec, known, gpus = context.stages()[path], model_of(context), gpus_of(context, path)
    if path == "pretrain":
        return _pretraining_resources(context, context.specs[path], gpus)
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
    """Return the recipe's number of GPUs, else one for each of the stage's processes if the model needs GPUs."""
    spec = context.stages()[path]
    if spec.pod and spec.pod.resources.gpu is not None:
        return int(spec.pod.resources.gpu)
    if not _needs_gpus(context):
        return 0
    return spec.devices()


def _needs_gpus(context: RunContext) -> bool:
    """Return whether the layout names a GPU, or the model is too large for a CPU. A hub model counts as large: its
    size is not known here."""
    if "pretrain" in context and context.specs["pretrain"].layout.device:
        return True
    if known := model_of(context):
        return known[0].parameters(known[1]) >= LARGE
    start = context.specs.get("start_from")
    return start is not None and "://" not in start.model and start.folder() is None


def _pretraining_resources(context: RunContext, spec: PretrainSpec, gpus: int) -> Resources:
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
    """Problems of pods that have less than their stages require: fewer GPUs, or memory far under the estimate, with
    which each attempt would end in the same way, and some before they could say why."""
    for path, spec in context.stages().items():
        if spec.pod is None or spec.placement:
            continue
        asked = spec.pod.resources
        if spec.pod.planned_memory:
            field = PodSpec.model_fields["planned_memory"]
            yield Problem(f"{path}.pod.planned_memory", spec.pod.planned_memory, f"unset: {field.description}")
        if path == "pretrain" and (problem := _gpus_missing(spec, asked.gpu)):
            yield problem
        least = _least(context, path)
        if asked.memory and in_bytes(asked.memory) < sum(least.values()):
            words = ", ".join(f"{in_mib(size)} for {part}" for part, size in least.items() if size >= MIB)
            if estimate := resources(context, path).memory:
                words += f"; the plan's estimate is {estimate}"
            allowed = f"at least {in_mib(sum(least.values()))}: {words}"
            yield Problem(f"{path}.pod.resources.memory", asked.memory, allowed)


def _gpus_missing(spec: StageSpec, asked: int | None) -> Problem | None:
    """Return the problem of a pretraining that does not have a GPU for each process."""
    if asked is None or asked == spec.devices() or not (spec.device() or asked):
        return None
    return Problem("pretrain.pod.resources.gpu", asked, f"{spec.devices()}: one for each of layout.processes")


def _least(context: RunContext, path: str) -> dict[str, float]:
    """The least memory with which a stage's pod can work, in bytes by purpose. The estimates are too high for that:
    tuning a small model took a third of its estimate."""
    spec, known = context.stages()[path], model_of(context)
    gpus = gpus_of(context, path) if spec.uses_gpus else 0
    parts: dict[str, float] = {"the process that starts the stage": LAUNCHER}
    if gpus or spec.uses_vllm():
        parts["vLLM" if spec.uses_vllm() else "CUDA"] = LIBRARIES * max(1, gpus)
    if needed := need(context, spec, GPU if gpus else CPU):
        each = needed.memory.host if gpus else needed.memory.total
        share, words = (1.0, "") if path == "pretrain" else (SURE, f"{SURE:.0%} of ")
        words += f"{spec.processes_each()} processes, each with {needed.memory.breakdown()}"
        parts[words] = share * spec.processes_each() * each
    if known and spec.uses_vllm() and not (gpus or (needed and needed.memory.total)):
        parts["the model's weights"] = 2 * known[0].parameters(known[1])  # in bf16
    return parts


def low_memory(context: RunContext) -> Iterator[str]:
    """Warnings of pods that have less memory than the plan estimates."""
    for path, spec in context.stages().items():
        asked = spec.pod.resources.memory if spec.pod and not spec.placement else None
        estimate = resources(context, path).memory
        if asked and estimate and in_bytes(asked) < in_bytes(estimate):
            yield f"{path}.pod.resources.memory: {asked} is less than the plan's estimate, {estimate}"

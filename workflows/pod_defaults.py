"""What the pods of a recipe's stages take on a Flyte cluster, by the plan's own estimates."""

from typing import TypeVar

from pydantic import BaseModel

from infra.pod_spec import PodSpec, Resources, in_bytes, in_gib
from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.memory import CPU, GPU
from tasks.pretrain.spec import PretrainSpec
from tasks.serve.spec import ServeSpec
from tasks.spec import Problem
from workflows.given import Given, model_of
from workflows.needs import need
from workflows.parts import replaced

R = TypeVar("R", bound=BaseModel)

GIB = 1024**3
PROCESS = 2 * GIB  # Python, torch and the libraries of an engine's process, and the pod's own that starts it
HOST = 8 * GIB  # of a process with a GPU: CUDA's context, NCCL's buffers, batches
VLLM = 4 * GIB  # its processes and its KV cache on a CPU, unless it is told another size
SPARE = 1.25  # what an estimate leaves out: the allocator's gaps, the kernels' own buffers
CORES_OF_A_GPU = 4
WITH_VLLM = ("evaluate", "dpo", "grpo", "serve")
LARGE = 300_000_000  # weights of a model that a CPU would train or sample for days
UNKNOWN = 8 * 10**9  # weights that there is room for beside a GPU, of a hub's model, whose size is not known here


def fitted(recipe: R, given: Given) -> R:
    """The recipe with the plan's amounts where its stages' pods leave them out."""
    for path, spec in given.stages().items():
        pod = (spec.pod or PodSpec()).over(PodSpec(resources=resources(given, path)))
        recipe = replaced(recipe, [*path.split("."), "pod"], pod)
    return recipe


def resources(given: Given, path: str) -> Resources:
    """What is known of a stage's pod; nothing: the stage's own defaults hold."""
    spec, known, gpus = given.stages()[path], model_of(given), gpus_of(given, path)
    stage = path.rpartition(".")[2]
    if isinstance(spec, PretrainSpec):
        return _of_pretraining(given, spec, gpus)
    if (known is None and not gpus) or not (stage in WITH_VLLM or isinstance(spec, PostTrainSpec)):
        return Resources()
    weights = known[0].parameters(known[1]) if known else UNKNOWN
    memory = PROCESS + (VLLM + 4 * weights if stage in WITH_VLLM else 0)  # as stored, and as loaded
    if isinstance(spec, ServeSpec) and not gpus:
        memory += (spec.cpu_cache_gib - 1) * GIB
    if isinstance(spec, PostTrainSpec) and not gpus:
        needed = need(given, spec, CPU)
        memory += int(SPARE * needed.memory.total) if needed else 0
    if gpus:
        memory += gpus * HOST
    return Resources(cpu=gpus * CORES_OF_A_GPU or None, memory=in_gib(memory), gpu=gpus or None)


def gpus_of_all(given: Given) -> dict[str, int]:
    """Of the stages that have a pod, by their names."""
    pods = [path for path, spec in given.stages().items() if not spec.placement]
    return {stage: gpu for stage in pods if (gpu := resources(given, stage).gpu)}


def gpus_of(given: Given, path: str) -> int:
    """As the recipe says, or as many as the stage has processes if the model needs them."""
    spec = given.stages()[path]
    if spec.pod and spec.pod.resources.gpu is not None:
        return int(spec.pod.resources.gpu)
    if not _needs_gpus(given):
        return 0
    if isinstance(spec, PretrainSpec):
        return spec.layout.processes
    return spec.tensor_parallel if isinstance(spec, ServeSpec) else 1


def _needs_gpus(given: Given) -> bool:
    """Whether the recipe says so in the layout, or the model is too large for a CPU. Of a hub's model the size is not
    known here; few of them are so small."""
    if "pretrain" in given and given.specs["pretrain"].layout.device:
        return True
    if known := model_of(given):
        return known[0].parameters(known[1]) >= LARGE
    start = given.specs.get("start_from")
    return start is not None and "://" not in start.model and start.folder() is None


def _of_pretraining(given: Given, spec: PretrainSpec, gpus: int) -> Resources:
    """On a GPU the host holds the state that is being saved."""
    processes = spec.layout.processes
    needed = need(given, spec, GPU if gpus else CPU)
    if needed is None:
        return Resources(gpu=gpus or None)
    if not gpus:
        memory = processes * (PROCESS + int(SPARE * needed.memory.total))
        return Resources(cpu=max(2, processes), memory=in_gib(memory))
    saved = needed.memory.weights + needed.memory.optimizer
    return Resources(cpu=processes * CORES_OF_A_GPU, memory=in_gib(processes * (HOST + saved)), gpu=gpus)


def too_small(given: Given) -> list[Problem]:
    """A pod has at least what the plan knows that its pretraining takes."""
    spec = given.specs.get("pretrain")
    if spec is None or spec.pod is None:
        return []
    asked, layout, found = spec.pod.resources, spec.layout, []
    gpus = gpus_of(given, "pretrain")
    needed = need(given, spec, GPU if gpus else CPU)
    if asked.gpu is not None and (layout.device or asked.gpu) and asked.gpu != layout.processes:
        allowed = f"{layout.processes}: one for each of layout.processes"
        found.append(Problem("pretrain.pod.resources.gpu", asked.gpu, allowed))
    if asked.memory and needed and not gpus:
        least = layout.processes * needed.memory.total
        if in_bytes(asked.memory) < least:
            allowed = f"at least {in_gib(least)}: {layout.processes} processes, each with {needed.memory.words()}"
            found.append(Problem("pretrain.pod.resources.memory", asked.memory, allowed))
    return found

"""What the pods of a recipe's stages take on a Flyte cluster, by the plan's own estimates."""

from typing import Any, TypeVar

from pydantic import BaseModel

from infra.pod_spec import PodSpec, Resources, in_bytes, in_gib
from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.memory import CPU, GPU
from tasks.pretrain.spec import PretrainSpec
from tasks.serve.spec import ServeSpec
from tasks.spec import Problem
from workflows.given import Given, model_of
from workflows.needs import need

R = TypeVar("R", bound=BaseModel)

GIB = 1024**3
PROCESS = 2 * GIB  # Python, torch and the libraries of an engine's process, and the pod's own that starts it
HOST = 8 * GIB  # of a process with a GPU: CUDA's context, NCCL's buffers, batches
VLLM = 4 * GIB  # its processes and its KV cache on a CPU, unless it is told another size
SPARE = 1.25  # what an estimate leaves out: the allocator's gaps, the kernels' own buffers
CORES_OF_A_GPU = 4
WITH_VLLM = ("evaluate", "dpo", "grpo", "serve")


def fitted(recipe: R, given: Given) -> R:
    """The recipe with the plan's amounts where its stages' pods leave them out."""
    for path, spec in given.stages().items():
        pod = (spec.pod or PodSpec()).over(PodSpec(resources=resources(given, path)))
        recipe = _with_pod(recipe, path.split("."), pod)
    return recipe


def _with_pod(part: Any, path: list[str], pod: PodSpec) -> Any:
    """`part` of a recipe (a spec, a list or a dictionary of specs) with another pod for the stage at `path`."""
    if not path:
        return part.model_copy(update={"pod": pod})
    first, *rest = path
    if isinstance(part, list):
        number = int(first)
        return [*part[:number], _with_pod(part[number], rest, pod), *part[number + 1 :]]
    if isinstance(part, dict):
        return part | {first: _with_pod(part[first], rest, pod)}
    return part.model_copy(update={first: _with_pod(getattr(part, first), rest, pod)})


def resources(given: Given, path: str) -> Resources:
    """What is known of a stage's pod; nothing: the stage's own defaults hold."""
    spec, stage, known = given.stages()[path], path.rpartition(".")[2], model_of(given)
    if isinstance(spec, PretrainSpec):
        return _of_pretraining(given, spec)
    if known is None or not (stage in WITH_VLLM or isinstance(spec, PostTrainSpec)):
        return Resources()
    weights = known[0].parameters(known[1])
    gpus = (spec.tensor_parallel if isinstance(spec, ServeSpec) else 1) if _on_gpus(given) else 0
    memory = PROCESS + (VLLM + 4 * weights if stage in WITH_VLLM else 0)  # as stored, and as loaded
    if isinstance(spec, ServeSpec) and not gpus:
        memory += (spec.cpu_cache_gib - 1) * GIB
    if isinstance(spec, PostTrainSpec) and not gpus:
        needed = need(given, spec, CPU)
        memory += int(SPARE * needed.memory.total) + 4 * weights + 2 * GIB if needed else 0  # reference, activations
    if gpus:
        memory += gpus * HOST
    return Resources(cpu=gpus * CORES_OF_A_GPU or None, memory=in_gib(memory), gpu=gpus or None)


def _of_pretraining(given: Given, spec: PretrainSpec) -> Resources:
    """On a GPU the host holds the state that is being saved."""
    processes = spec.layout.processes
    needed = need(given, spec, GPU if spec.layout.device else CPU)
    if needed is None:
        return Resources(gpu=processes if spec.layout.device else None)
    if not spec.layout.device:
        memory = processes * (PROCESS + int(SPARE * needed.memory.total))
        return Resources(cpu=max(2, processes), memory=in_gib(memory))
    saved = needed.memory.weights + needed.memory.optimizer
    return Resources(cpu=processes * CORES_OF_A_GPU, memory=in_gib(processes * (HOST + saved)), gpu=processes)


def _on_gpus(given: Given) -> bool:
    """Whether the recipe is for GPUs: pretraining alone says so in its layout; another stage's pod may ask for some."""
    return "pretrain" in given.specs and given.specs["pretrain"].layout.device is not None


def too_small(given: Given) -> list[Problem]:
    """A pod has at least what the plan knows that its pretraining takes."""
    spec = given.specs.get("pretrain")
    if spec is None or spec.pod is None:
        return []
    asked, layout, found = spec.pod.resources, spec.layout, []
    needed = need(given, spec, GPU if layout.device or asked.gpu else CPU)
    if asked.gpu is not None and (layout.device or asked.gpu) and asked.gpu != layout.processes:
        allowed = f"{layout.processes}: one for each of layout.processes"
        found.append(Problem("pretrain.pod.resources.gpu", asked.gpu, allowed))
    if asked.memory and needed and not (layout.device or asked.gpu):
        least = layout.processes * needed.memory.total
        if in_bytes(asked.memory) < least:
            allowed = f"at least {in_gib(least)}: {layout.processes} processes, each with {needed.memory.words()}"
            found.append(Problem("pretrain.pod.resources.memory", asked.memory, allowed))
    return found

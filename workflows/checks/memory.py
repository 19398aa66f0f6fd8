"""Check that each post-training stage, and vLLM's share, fits its GPU, and suggest settings that would fit."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from baton.infra.text import count, gigabytes, in_yaml
from baton.tasks.core.spec import Problem, StageSpec
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.hardware.accelerators import BY_NAME
from baton.tasks.hardware.memory import GPU, USABLE, Memory, Place, place_of
from baton.tasks.posttrain.adapter_spec import AdapterSpec
from baton.tasks.posttrain.rollout_spec import RolloutServers
from baton.tasks.posttrain.spec import LENGTH, PostTrainSpec
from baton.tasks.vllm.memory import kv_cache_bytes
from baton.workflows.checks.run_context import RunContext, devices_of, model_of, need, positions_of, runs_on_a_cluster

MODEL_BYTES = 2  # of a weight in bf16
WITH_CACHE = 1.1  # memory as a multiple of the weights' size, with vLLM's activations and a minimal KV cache
MOST_PROCESSES = 8  # suggested at most for a stage that is placed elsewhere


def tuning_memory(context: RunContext) -> Iterator[Problem]:
    """Check that each process of a post-training stage fits wherever it may run, and has a GPU if there are any."""
    for step in context.tunings():
        if runs_on_a_cluster() and not step.spec.placement:
            continue
        processes, gpus = step.spec.layout.processes, len(context.machine.gpus)
        gpus_needed = step.spec.devices()
        for device in devices_of(context, step.spec):
            if gpus and not device and gpus_needed > gpus:
                servers = ", with those of the rollout servers" if gpus_needed > processes else ""
                allowed = f"at most this machine's GPUs ({gpus}){servers}, one for each process"
                yield Problem(f"{step.path}.layout.processes", processes, allowed)
            place = place_of(device, processes, context.machine)
            needed = need(context, step.spec, place.kernels, place.capacity) if place else None
            if place is None or needed is None or _has_room(context, step.spec, place, needed.memory):
                continue
            allowed = (
                f"needs {gigabytes(needed.memory.total)} on {'one' if processes == 1 else 'each'} {place.name} "
                f"({gigabytes(place.capacity)}): {needed.memory.breakdown()}"
            )
            if needed.memory.host > (host := _host_memory(context, step.spec)):
                allowed += f" ({gigabytes(host)})"
            allowed += f"; {_smaller(context, step.spec, place)}"
            yield Problem(step.path, f"{count(needed.parameters)} parameters", allowed)


def _has_room(context: RunContext, spec: PostTrainSpec, place: Place, memory: Memory) -> bool:
    """Return whether a process fits its device and, with what is offloaded, its share of the host's memory."""
    return place.has_room_for(memory) and memory.host <= _host_memory(context, spec)


def _host_memory(context: RunContext, spec: PostTrainSpec) -> float:
    """The usable memory of the host in bytes for each process; infinite if it is not known."""
    return USABLE * context.machine.memory_bytes / spec.layout.processes if _runs_here(context, spec) else math.inf


def _runs_here(context: RunContext, spec: PostTrainSpec) -> bool:
    """Return whether the stage runs on this machine's GPUs."""
    return bool(context.machine.gpus) and not spec.placement


def _smaller(context: RunContext, spec: PostTrainSpec, place: Place) -> str:
    """Suggest a change that would fit, or another accelerator."""
    for changed in _nearest(context, spec, place):
        needed = need(context, changed, place.kernels, place.capacity)
        if needed and not changed.problems() and _has_room(context, changed, place, needed.memory):
            several = " on each GPU" if changed.layout.processes > 1 else ""
            host = f" and {gigabytes(needed.memory.host)} of the host's memory" if needed.memory.host else ""
            return f"use {_difference(spec, changed)}, which needs {gigabytes(needed.memory.total)}{host}{several}"
    for chip in sorted(BY_NAME.values(), key=lambda chip: chip.memory_gb):
        larger = place_of(chip.name, 1, context.machine)
        needed = need(context, spec, capacity=larger.capacity) if larger else None
        if larger and needed and larger.has_room_for(needed.memory):
            return f"tune a smaller model, or give the stage a `placement` on {chip.name} ({chip.memory_gb:g} GB)"
    return "tune a smaller model: no accelerator has as much memory"


def _nearest(context: RunContext, spec: PostTrainSpec, place: Place) -> Iterator[PostTrainSpec]:
    """Specs that need less memory, the smallest change first: smaller micro batches, then also recomputed layers, then
    also FSDP2 over the GPUs that there may be, then also CPU offload if the host's memory is known, then also rollout
    servers, then also LoRA, and finally QLoRA."""
    layout, adapter, gpus = spec.layout, spec.adapter, len(context.machine.gpus)
    if adapter is None:
        adapters = [None, AdapterSpec(), AdapterSpec(quantize="nf4")]
    else:
        adapters = [adapter, adapter.model_copy(update={"quantize": "nf4"})]
    is_local = _runs_here(context, spec)
    most = gpus if is_local else MOST_PROCESSES
    more = [count for count in (2, 4, 8) if layout.processes <= count <= most] if place.kernels == GPU else []
    spread: list[dict[str, Any]] = [{}, *({"processes": count, "sharding": "fsdp2"} for count in more)]
    offload: list[dict[str, Any]] = [{}, *([{"sharding": "fsdp2", "cpu_offload": True}] if is_local else [])]
    recompute: list[dict[str, Any]] = [{}, {"gradient_checkpointing": True}]
    elsewhere = [{}, *_servers(context, spec, place)]
    changes = itertools.product(adapters, elsewhere, offload, spread, recompute)
    for changed, servers, offloaded, divided, recomputed in changes:
        if recomputed and layout.recomputes(place.kernels == GPU):
            continue
        wider = layout.model_copy(update=offloaded | divided | recomputed)
        largest = wider.micro_batch_of(spec.batch_size, spec.most_in_micro_batch)
        for size in (None, *range(largest - 1, 0, -1)):
            smaller = {} if size is None else {"micro_batch": size}
            update = {"layout": wider.model_copy(update=smaller), "adapter": changed} | servers
            yield spec.model_copy(update=update)


def _servers(context: RunContext, spec: PostTrainSpec, place: Place) -> Iterator[dict[str, Any]]:
    """Rollouts on separate GPUs, as few for each engine as can hold the weights: on a separate machine if the stage is
    placed, else on this machine's remaining GPUs."""
    known = model_of(context)
    if not spec.samples_every_step() or spec.servers() or place.kernels != GPU or known is None:
        return
    nodes = 1 if spec.placement else 0
    for parallel in (1, 2, 4, 8):
        servers = RolloutServers(nodes=nodes, tensor_parallel=parallel)
        holds = known[0].parameters(known[1]) * MODEL_BYTES * WITH_CACHE / parallel
        free = MOST_PROCESSES if nodes else len(context.machine.gpus) - spec.layout.processes
        if holds <= servers.gpu_memory_share * place.capacity and parallel <= free:
            engines = spec.layout.processes // parallel if nodes else 1
            yield {"rollout_servers": servers.model_copy(update={"engines": max(1, engines)})}
            return


def _difference(before: PostTrainSpec, after: PostTrainSpec) -> str:
    """The changed fields, as in a recipe."""
    layout = {name: value for name, value in after.layout.model_dump().items() if value != getattr(before.layout, name)}
    changed = {"layout": layout} if layout else {}
    if after.adapter and after.adapter != before.adapter:
        quantized = {"quantize": after.adapter.quantize} if after.adapter.quantize else {}
        changed["adapter"] = {"lora": {}} | quantized if before.adapter is None else quantized
    if (servers := after.servers()) and servers != before.servers():
        changed["rollout_servers"] = servers.model_dump(exclude_defaults=True)
    return " and ".join(f"{name}: {in_yaml(value)}" for name, value in changed.items())


def vllm_memory(context: RunContext) -> Iterator[Problem]:
    """Check that vLLM's share of a stage's GPU, or on a CPU the machine's memory, holds the model's weights and the KV
    cache of one sequence."""
    known = model_of(context)
    if known is None or runs_on_a_cluster():
        return
    model = known[0]
    weights = model.parameters(known[1]) * MODEL_BYTES
    for engine in _engines(context):
        cache = kv_cache_bytes(model.layers, model.kv_heads, model.head_dim, engine.length)
        for device in devices_of(context, engine.spec):
            place = place_of(device, 1, context.machine)
            if place is None:
                continue
            needed = max(weights * WITH_CACHE, weights + cache) / engine.gpus
            share = engine.share if place.kernels == GPU else USABLE
            if needed <= share * place.capacity:
                continue
            shown = f"{gigabytes(weights / engine.gpus)} of weights in bf16 and a KV cache"
            shown += f" of {gigabytes(cache / engine.gpus)} for {engine.length:,} tokens" * (cache > weights * 0.1)
            where = f"on {place.name} ({gigabytes(place.capacity)})"
            least = needed / place.capacity
            larger = "a smaller model, shorter sequences, or a larger accelerator"
            if place.kernels != GPU:
                yield Problem(engine.path, f"{engine.length:,} tokens", f"{larger}: {shown}, {where}")
                continue
            instead = f"at least {math.ceil(100 * least) / 100:g}" if least < USABLE else larger
            instead += ", or more tensor_parallel" * engine.path.endswith("rollout_servers")
            yield Problem(f"{engine.path}.gpu_memory_share", engine.share, f"{instead}: {shown}, {where}")


@dataclass(frozen=True)
class _Engine:
    """A vLLM engine of a stage."""

    path: str
    spec: StageSpec
    share: float  # of each GPU's memory
    length: int  # minimum length of a sequence, in tokens
    gpus: int = 1


def _engines(context: RunContext) -> Iterator[_Engine]:
    positions, _ = positions_of(context) or (LENGTH, "")
    spec: EvaluateSpec | None = context.specs.get("evaluate")
    if spec:  # the prompts are known when it runs
        sampled = [one.max_new_tokens for one in spec.evaluators().values() if one.data is not None]
        yield _Engine("evaluate", spec, spec.gpu_memory_share, max([1, *sampled]))
    for step in context.tunings():
        length = step.spec.limits(positions).total
        for each in step.spec.vllm_engines():
            path = f"{step.path}.{each.field}".removesuffix(".")
            yield _Engine(path, step.spec, each.memory_share, length, each.gpus)

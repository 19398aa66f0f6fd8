"""Pretraining steps, all through its engine: speed and memory, kill -9, FP8, two GPUs."""

import os
import signal
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from baton.infra.process.heartbeat import read_beats
from baton.tasks.core.job import json_lines
from baton.tasks.core.manifest import MANIFEST
from baton.tasks.hardware.flops import flops_per_token
from baton.tasks.hardware.memory import GB, GPU
from baton.tasks.pretrain.memory import estimate
from baton.tasks.pretrain.spec import CheckpointPolicy, PretrainSpec
from baton.workflows.gpu_check.sizes import fitting
from baton.workflows.gpu_check.step import CannotBeTried, Check, CheckFailed

ENGINE, KIND = "baton.tasks.pretrain.train", "megatron_checkpoint"
WARM_UP = 3  # steps that are not timed
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "tensor": {"processes": 2, "tensor": 2, "sequence_parallel": True},
    "data": {"processes": 2, "distributed_optimizer": True},
}
SAME = 1e-4  # relative, of losses in fp32 under different layouts
CLOSE = 1e-2  # relative, of losses in bf16 after a resume: attention's backward pass isn't deterministic on a GPU


def small(check: Check) -> None:
    """A dense model of half a billion parameters in bf16."""
    _measure(check, check.size.pretraining(check.size.small))


def large(check: Check) -> None:
    """A dense model of a billion parameters in bf16."""
    _measure(check, check.size.pretraining(check.size.large))


def fp8(check: Check) -> None:
    """The large model again in FP8, with Transformer Engine's layers: same loss, higher speed."""
    if check.machine.gpus[0].capability < (8, 9):
        raise CannotBeTried(f"{check.machine.gpus[0].name} has no FP8")
    job = _measure(check, check.size.pretraining(check.size.large, "fp8"))
    before = check.artifact("pretrain-1b").parent
    check.figure("times as fast as bf16", _speed(job) / _speed(before))
    apart = abs(_losses(job)[-1] - _losses(before)[-1])
    check.figure("last loss, apart from bf16's", apart, "nats")
    if apart > 0.1:
        raise CheckFailed(f"the last loss is {apart:.3f} nats from that in bf16; at most 0.1 was expected")


def _measure(check: Check, spec: PretrainSpec) -> Path:
    """Train, and record speed and memory."""
    spec = _with_fitting_batch(check, spec)
    vocabulary = check.size.vocabulary()
    check.figure("parameters", spec.model.parameters(vocabulary) / 1e6, "M")
    job = _train(check, spec)
    steps = json_lines(job / "metrics.jsonl")[WARM_UP:]
    median = {name: statistics.median(step[name] for step in steps) for name in steps[0] if name != "validation_loss"}
    step_s = sum(median[phase] for phase in ("data_s", "forward_backward_s", "optimizer_s"))
    check.figure("speed", median["tokens_per_s"], "tokens/s")
    if "mfu" in median:
        check.figure("MFU", median["mfu"], "%")
    check.figure("arithmetic", median["tokens_per_s"] * _flops(spec, vocabulary) / 1e12, "TFLOP/s")
    check.figure("wait for data", median["data_s"] / step_s, "%")
    check.figure("optimizer", median["optimizer_s"] / step_s, "%")
    check.figure("micro batch", spec.layout.micro_batch)
    if "memory_gb" in median:
        expected = estimate(spec, vocabulary, GPU).total / GB
        check.figure("memory", median["memory_gb"], "GB")
        check.figure("memory of its estimate", median["memory_gb"] / expected, "%")
    losses = _losses(job)
    check.figure("first loss", losses[0], "nats")
    check.figure("last loss", losses[-1], "nats")
    if not losses[-1] < losses[0]:
        raise CheckFailed(f"the loss does not fall: {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last")
    return job


def kill(check: Check) -> None:
    """Repeat the small model's run with kill -9 after its first checkpoint; the launcher restarts it from there."""
    every = max(2, check.size.steps // 3)
    spec = _with_fitting_batch(check, check.size.pretraining(check.size.small))
    spec = spec.model_copy(update={"checkpoints": CheckpointPolicy(every=every), "validate_every": spec.steps})
    killer = threading.Thread(target=_kill_after, args=(check.own / check.step, every), daemon=True)
    killer.start()
    job = _train(check, spec, restarts=1)
    log = (job / "log.txt").read_text()
    if "starting again from the newest checkpoint" not in log:
        raise CheckFailed("the run ended before it was killed: it was too fast for a kill after its first checkpoint")
    expected, found = _losses(check.artifact("pretrain-0.5b").parent), _losses(job)
    apart = [abs(one - other) / other for one, other in zip(found, expected, strict=True)]
    check.figure("steps", len(found))
    check.figure("steps with the same loss, bit for bit", apart.count(0.0))
    check.figure("largest difference of a loss, relative", max(apart))
    if max(apart) > CLOSE:
        raise CheckFailed(f"a loss differs by {max(apart):.2g} (relative) from the undisturbed run's; at most {CLOSE}")


def _kill_after(job: Path, step: int) -> None:
    """Kill the rank as soon as the checkpoint of this step is complete."""
    while not (job / "work" / "checkpoints" / f"step-{step:08d}" / MANIFEST).exists():
        time.sleep(0.002)
    os.kill(read_beats(job, [0])[0].pid, signal.SIGKILL)


def two(check: Check) -> None:
    """Two GPUs: tensor with sequence parallelism, and data parallelism, give one process's losses in fp32."""
    base = check.size.pretraining(check.size.small, "fp32").model_copy(update={"steps": 6})
    losses = {}
    for name, layout in LAYOUTS.items():
        spread = base.layout.model_copy(update=layout)
        job = _train(check, base.model_copy(update={"layout": spread}), name=name)
        losses[name] = _losses(job)
        check.figure(spread.name(), _speed(job), "tokens/s")
    for name in ("tensor", "data"):
        pairs = zip(losses[name], losses["one"], strict=True)
        apart = max(abs(one - other) / other for one, other in pairs)
        check.figure(f"largest difference of a loss, {name} parallel, relative", apart)
        if apart > SAME:
            raise CheckFailed(
                f"{name} parallel: a loss differs by {apart:.2g} (relative) from one GPU's; at most {SAME}"
            )


def _train(check: Check, spec: PretrainSpec, name: str = "", restarts: int = 0) -> Path:
    shards = check.artifact("data", "shards")
    return check.run(ENGINE, KIND, spec, name, processes=spec.layout.processes, restarts=restarts, data=shards)


def _with_fitting_batch(check: Check, spec: PretrainSpec) -> PretrainSpec:
    """On a GPU, the spec with the largest micro batch that fits its memory."""
    if not check.machine.gpus:
        return spec.model_copy(update={"layout": spec.layout.model_copy(update={"micro_batch": spec.global_batch})})
    gpu = check.machine.gpus[0]
    found = fitting(spec, gpu.memory_gb)
    if found is None:
        least = estimate(spec, check.size.vocabulary(), GPU)
        raise CannotBeTried(f"it needs {least.total / GB:.0f} GB and {gpu.name} has {gpu.memory_gb:.0f}")
    return found


def _flops(spec: PretrainSpec, vocabulary: int) -> float:
    return flops_per_token(spec.model, vocabulary, spec.sequence_length)


def _losses(job: Path) -> list[float]:
    return [line["loss"] for line in json_lines(job / "metrics.jsonl")]


def _speed(job: Path) -> float:
    return float(statistics.median(line["tokens_per_s"] for line in json_lines(job / "metrics.jsonl")[WARM_UP:]))

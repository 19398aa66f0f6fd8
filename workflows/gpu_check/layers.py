"""Compare Megatron's layers with plain PyTorch's: what torch.compile would gain, and where the GPU's time goes.

Baton's model and Transformers' of the same shape with torch's attention, each eager and compiled, forward and backward
on the same tokens, weights in bf16.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from baton.tasks.hardware.flops import flops_per_token
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.pretrain.layout import Layout
from baton.workflows.gpu_check.hardware import seconds
from baton.workflows.gpu_check.step import Check

if TYPE_CHECKING:
    from torch import Tensor

LAYERS = 4  # of the large model: enough for a rate, and quick to compile
SEQUENCES = 4
REPEATS = 10  # on a GPU; once on a CPU, where only correctness matters
OPERATIONS = 20  # shown in the profile

Loss = Callable[["Tensor"], "Tensor"]


def layers(check: Check) -> None:
    """Measure the FLOP/s of each variant."""
    import torch

    from baton.tasks.pretrain.megatron import DEVICE

    vocabulary, length = check.size.vocabulary(), check.size.sequence
    spec = check.size.large.model_copy(update={"layers": min(LAYERS, check.size.large.layers)})
    tokens = torch.randint(0, vocabulary, (SEQUENCES, length), device=DEVICE)
    flop = flops_per_token(spec, vocabulary, length) * tokens.numel()
    with _alone():
        megatron, transformers = _megatron(spec, vocabulary), _transformers(spec, vocabulary)
        contenders: dict[str, Loss] = {
            "Megatron's layers": megatron,
            "Transformers, SDPA": transformers,
            "Transformers, SDPA, compiled": torch.compile(transformers),
            "Megatron's layers, compiled": torch.compile(megatron),
        }
        for name, loss in contenders.items():
            taken_s = seconds(partial(_pass, loss, tokens), REPEATS if check.machine.gpus else 1)
            check.figure(name, flop / taken_s / 1e12, "TFLOP/s")
        (check.own / "profile.txt").write_text(_profile(partial(_pass, megatron, tokens)))


def _pass(loss: Loss, tokens: "Tensor") -> None:
    """Forward and backward; gradients accumulate, as over micro batches."""
    loss(tokens).backward()


@contextmanager
def _alone() -> Iterator[None]:
    """Megatron's process groups, with this process alone."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    from baton.tasks.pretrain.megatron import BACKEND
    from baton.tasks.pretrain.process import model_parallel

    dist.init_process_group(BACKEND, store=HashStore(), rank=0, world_size=1)
    with model_parallel(Layout(), seed=0):
        yield
    dist.destroy_process_group()


def _megatron(spec: ModelSpec, vocabulary: int) -> Loss:
    import torch

    from baton.tasks.pretrain.model import build_model, transformer_config

    config = transformer_config(spec, "bf16")
    model = build_model(spec, config, vocabulary).bfloat16()

    def loss(tokens: "Tensor") -> "Tensor":
        positions = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        losses: Tensor = model(tokens, positions, None, labels=tokens)
        return losses.mean()

    return loss


def _transformers(spec: ModelSpec, vocabulary: int) -> Loss:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from baton.tasks.convert.from_spec import config_fields
    from baton.tasks.pretrain.megatron import DEVICE

    config = AutoConfig.for_model(**config_fields(spec, vocabulary))
    made: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    model = made.to(DEVICE)

    def loss(tokens: "Tensor") -> "Tensor":
        mean: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return mean

    return loss


def _profile(work: Callable[[], object]) -> str:
    """A table of the slowest operations, by GPU time if there is a GPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as recorded:
        work()
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    table: str = recorded.key_averages().table(sort_by=order, row_limit=OPERATIONS)
    return table

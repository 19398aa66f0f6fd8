"""Build Megatron's AdamW and learning-rate schedule for the chunks of a model."""

import torch

from baton.tasks.pretrain import megatron  # noqa: F401  before megatron.core
from baton.tasks.pretrain.spec import PretrainSpec

# isort: split
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler


def build_optimizer(
    spec: PretrainSpec, chunks: list[DistributedDataParallel]
) -> tuple[MegatronOptimizer, OptimizerParamScheduler]:
    settings = spec.optimizer
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=settings.lr,
            min_lr=settings.min_lr,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.beta1,
            adam_beta2=settings.beta2,
            adam_eps=settings.eps,
            clip_grad=settings.clip_grad,
            bf16=spec.precision != "fp32",
            params_dtype=torch.float32 if spec.precision == "fp32" else torch.bfloat16,
            use_distributed_optimizer=spec.layout.distributed_optimizer,
        ),
        chunks,
    )
    for group in optimizer.param_groups:
        group["fused"] = True  # torch's fused AdamW, for which Megatron has no option
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=settings.warmup_from,
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=settings.warmup_steps,
        lr_decay_steps=spec.steps,
        lr_decay_style=settings.decay,
        start_wd=settings.weight_decay,
        end_wd=settings.weight_decay,
        wd_incr_steps=spec.steps,
        wd_incr_style="constant",
        wsd_decay_steps=settings.wsd_decay_steps or None,
        lr_wsd_decay_style="cosine",
    )
    return optimizer, scheduler


def clip_gradients(optimizer: MegatronOptimizer, grad_norm: float) -> None:
    """Clip the gradients to OptimizerSpec.clip_grad. `grad_norm` is their norm over all ranks.

    This is a part of ChainedOptimizer.step(), separated so that a step can be judged before the update."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if not getattr(part, "is_stub_optimizer", False) and part.get_parameters():
            clip_grad_by_total_norm_fp32(part.get_parameters(), part.config.clip_grad, grad_norm)

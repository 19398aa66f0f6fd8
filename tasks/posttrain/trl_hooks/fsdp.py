"""FSDP2 through Accelerate, on CPUs too."""

from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy


def arguments(model: Any, cpu_offload: bool) -> dict[str, Any]:
    """Return TrainingArguments for FSDP2: each decoder layer is a unit, and gradients are reduced after each micro
    batch (Accelerate would keep unsharded gradients until a step's last micro batch)."""
    return {
        "fsdp": True,
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
        # The norm of offloaded gradients is reduced on CPUs
        "ddp_backend": "cuda:nccl,cpu:gloo" if cpu_offload and torch.cuda.is_available() else None,
        "fsdp_config": {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": sorted(
                {type(module).__name__ for module in model.modules()} & {*model._no_split_modules}
            ),
            "state_dict_type": "SHARDED_STATE_DICT",
            "cpu_offload": cpu_offload,
        },
    }


def allow_cpus() -> None:
    """Let Accelerate shard on CPUs: its list of devices for FSDP lacks them, and it would silently train with DDP. A
    hook into accelerate 1.15 (AcceleratorState.__init__)."""
    original_init = AcceleratorState.__init__
    if hasattr(original_init, "allows_cpus"):
        return

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **more: Any) -> None:
        original_init(self, *args, fsdp_plugin=fsdp_plugin, **more)
        if fsdp_plugin is not None and self.device.type == "cpu":
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            if isinstance(fsdp_plugin.cpu_offload, CPUOffloadPolicy):
                fsdp_plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)  # pinning needs a GPU

    init.allows_cpus = True  # type: ignore[attr-defined]
    AcceleratorState.__init__ = init  # type: ignore[method-assign]


def reduce_in_fp32(trainer: Any) -> None:
    """Gather weights in bf16 but reduce gradients in fp32; Accelerate's policy does both in bf16. On CPUs both are in
    fp32 and autocast applies, as without sharding."""
    if trainer.args.bf16 and torch.cuda.is_available():
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        trainer.accelerator.state.fsdp_plugin.mixed_precision_policy = policy

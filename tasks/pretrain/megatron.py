"""Megatron-Core, ready for this machine. Import Megatron's names from nowhere before this module."""

import torch

from tasks.pretrain import megatron_on_cpu

CUDA = torch.cuda.is_available()
if not CUDA:
    megatron_on_cpu.install()

from megatron.core.transformer.moe import moe_utils  # noqa: E402  after install()

if not hasattr(moe_utils, "te_general_gemm"):
    # Megatron-Core 0.16 forgets this name where Transformer Engine is not installed, and a router that
    # computes in fp32 then fails. It can go with a release that sets it.
    moe_utils.te_general_gemm = None

DEVICE = torch.device("cuda" if CUDA else "cpu")
BACKEND = "nccl" if CUDA else "gloo"

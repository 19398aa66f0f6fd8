"""Megatron-Core, ready for this machine. Import Megatron's names from nowhere before this module."""

import torch

from tasks.pretrain import megatron_on_cpu

CUDA = torch.cuda.is_available()
if not CUDA:
    megatron_on_cpu.install()

DEVICE = torch.device("cuda" if CUDA else "cpu")
BACKEND = "nccl" if CUDA else "gloo"

"""Prepare Megatron-Core for this machine. Import this module before anything from megatron.core."""

import torch

from baton.tasks.hardware import cpu_matmul
from baton.tasks.pretrain import megatron_on_cpu

CUDA = torch.cuda.is_available()
if not CUDA:
    megatron_on_cpu.install()
    cpu_matmul.prepare()

DEVICE = torch.device("cuda" if CUDA else "cpu")
BACKEND = "nccl" if CUDA else "gloo"

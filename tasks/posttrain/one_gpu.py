"""Restrict a single process to one GPU; each post-training engine imports this first.

Processes of torchrun see all of them, and each takes its own. TRL doesn't start in a single process that sees several
(Transformers' Trainer would use DataParallel). CUDA reads CUDA_VISIBLE_DEVICES once, when it is initialized, which some
libraries do on import.
"""

import os
from collections.abc import Mapping, MutableMapping

from infra.progress import say
from tasks.hardware.machine import this_machine


def see_one_gpu(gpus: int, environment: MutableMapping[str, str]) -> None:
    """Leave the first of several visible GPUs in CUDA_VISIBLE_DEVICES."""
    if gpus < 2:
        return
    first = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    environment["CUDA_VISIBLE_DEVICES"] = first
    say(f"post-training without layout.processes uses one GPU: {first} of the {gpus} visible ones")


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The visible GPUs, as CUDA_VISIBLE_DEVICES names them."""
    count = len(this_machine().gpus)
    names = environment.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return [name.strip() for name in names[:count]]


GPUS = visible_gpus(os.environ)  # before the restriction

if "LOCAL_RANK" not in os.environ:
    see_one_gpu(len(this_machine().gpus), os.environ)

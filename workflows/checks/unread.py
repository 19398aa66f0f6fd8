"""List the models and data that the checks before a run could not read on this machine, and so do not cover."""

import os
from collections.abc import Iterator

from baton.tasks.convert.load_hf_spec import LoadHFSpec
from baton.tasks.models.model_spec import FAMILIES
from baton.workflows.checks.machine import OFFLINE, YES, of_the_hub
from baton.workflows.checks.run_context import RunContext, model_of

MODELS = "the size, memory and hours of the stages that use it are not known"


def unread(context: RunContext) -> list[str]:
    """One line for each, with the field that names it."""
    return [*_models(context), *_data(context)]


def _models(context: RunContext) -> Iterator[str]:
    start = context.specs.get("start_from")
    if start is not None and model_of(context) is None:
        config = start.config() or {}
        kind = str(config.get("model_type"))
        shape = (
            f"there is no estimate for model_type {kind}" if kind not in FAMILIES else "its config.json gives no shape"
        )
        why = _why(start) or shape
        yield f"start_from.model: {start.model}: {why}: {MODELS}"
    if "pretrain" in context.specs and model_of(context) is None:
        tokenizer = context.specs.get("tokenizer")
        named = f"tokenizer.existing: {tokenizer.existing}: " if tokenizer and tokenizer.existing else "tokenizer: "
        yield f"{named}its size is not known here, and pretrain.model.vocab_size not given: {MODELS}"
    init = context.specs.get("init_from")
    if init is not None and not init.missing() and (reason := _why(init)):
        yield f"init_from.model: {init.model}: {reason}: whether it has the shape of pretrain.model is not known"


def _why(spec: LoadHFSpec) -> str | None:
    """The reason why the model's config.json cannot be read; None if it can."""
    offline = [name for name in OFFLINE if os.environ.get(name, "").upper() in YES]
    why = spec.unread()
    return f"{why}, and {offline[0]} disables the hub" if why and offline and spec.is_on_hub() else why


def _data(context: RunContext) -> Iterator[str]:
    """Text and rows that the run downloads."""
    for path, kind, name in of_the_hub(context.stages()):
        if kind == "dataset":
            yield f"{path}: {name}: the run reads it from the hub: its size and its rows are not known"

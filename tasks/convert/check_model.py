"""Compare a model's tensors, by the headers of its files, with those of its class in Transformers."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils.logging import disable_progress_bar, enable_progress_bar

from baton.tasks.core.job import StageError
from baton.tasks.models.hf_files import BUFFERS, CONFIG, GENERATION, HFModelFiles, same_values
from baton.tasks.models.model_files import linear_names, load_causal_lm

PREFIXES = ("_orig_mod.", "module.", "base_model.model.")  # prefixes of torch.compile, DDP and PEFT


@dataclass(frozen=True)
class CheckedModel:
    """A model whose files have every tensor of its class in its shape, and no others that may matter."""

    architecture: str
    renamed: bool  # whether some tensors have other names than in Transformers, which vLLM reads
    linear: set[str]  # names of its linear layers, without the head
    unused: list[str]  # tensors that the class knows but does not need, such as those of multi-token prediction


def check_model(folder: Path, files: HFModelFiles) -> CheckedModel:
    """Check a model. `files`: the contents of `folder`. Raises StageError with all problems."""
    with errors_named():
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if not files.tensors:
        raise StageError("it has no weights in safetensors files, the only supported format: convert them to it")
    if problems := [*files.problems(), *_unused_window(config, files)]:
        raise StageError("; ".join(problems))
    try:
        GenerationConfig.from_dict(files.generation).validate()
    except (ValueError, TypeError, AttributeError) as error:  # it checks few types of values
        raise StageError(f"{GENERATION} is not valid ({error}): correct or remove the field") from error
    model, loading_info = _matched(config, files)
    unexpected = sorted(name for name in loading_info["unexpected_keys"] if not name.endswith(BUFFERS))
    architecture = type(model).__name__
    _check_prefix(unexpected)
    wrong = [f"{name} has no place in {architecture}: remove it from the file" for name in unexpected]
    wrong += [f"{name} is missing" for name in sorted(loading_info["missing_keys"])]
    wrong += [
        f"{name} is {list(stored)}; the config says {list(expected)}"
        for name, stored, expected in sorted(loading_info["mismatched_keys"])
    ]
    tensors = files.tensors
    tied: dict[str, str] = model.all_tied_weights_keys
    for output, embedding in tied.items():
        both = output in tensors and embedding in tensors
        if both and not same_values(tensors[output], tensors[embedding]):
            wrong.append(
                f"{CONFIG} ties the output to the embedding (tie_word_embeddings), but {output} differs from "
                f"{embedding}: set tie_word_embeddings to false if {output} was trained, or remove {output} from the "
                "file"
            )
    if wrong:
        raise StageError("; ".join(wrong[:10]) + (f"; and {len(wrong) - 10} more" if len(wrong) > 10 else ""))
    names = set(revert_weight_conversion(model, model.state_dict())) - tied.keys()
    unused = [] if names - tensors.keys() else sorted(tensors.keys() - names - tied.keys())
    return CheckedModel(architecture, bool(names - tensors.keys()), linear_names(model), unused)


def _matched(config: PretrainedConfig, files: HFModelFiles) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a model of the class on the meta device, and Transformers' loading info for the files' tensors, without
    reading tensors: with `device_map="meta"` alone, Transformers would read every expert of a mixture, to merge them.
    Raises StageError."""
    with errors_named(), _quiet():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config=config, trust_remote_code=False)
            tensors = {name: torch.empty(tensor.shape) for name, tensor in files.tensors.items()}
        return type(model).from_pretrained(  # type: ignore[no-any-return]
            None,
            config=model.config,
            state_dict=tensors,
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )


def load(folder: Path, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return the model in a folder, and Transformers' loading info. Raises StageError."""
    with errors_named(), _quiet():
        return load_causal_lm(folder, output_loading_info=True, **options)  # type: ignore[no-any-return]


def _unused_window(config: PretrainedConfig, files: HFModelFiles) -> Iterator[str]:
    """Yield a problem for a sliding window that the class lacks: Transformers keeps the field without using it, but
    vLLM (0.27) applies it to all classes."""
    window, positions, kind = files.number("sliding_window"), files.positions or 0, type(config)
    if window and window < positions and not hasattr(kind, "sliding_window"):
        yield (
            f"{CONFIG} has sliding_window {window}, which vLLM applies and Transformers' {kind.__name__} does not "
            "have: remove it if the model was trained without it, or choose a model_type that has it (mistral)"
        )


@contextmanager
def errors_named() -> Iterator[None]:
    """Raise StageError for any exception of Transformers while it loads or runs a model."""
    try:
        yield
    except Exception as error:  # transformers does not validate configs: any exception can occur
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
        raise StageError(f"cannot be used as a causal language model: {reason}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable Transformers' progress bar, and its table of the tensors, which the error repeats."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(before)
        enable_progress_bar()


def _check_prefix(names: list[str]) -> None:
    """Raise StageError if these names are unknown because of a wrapper's prefix."""
    for prefix in PREFIXES:
        if names and all(name.startswith(prefix) for name in names):
            raise StageError(f"its tensors' names begin with {prefix}: save the wrapped model, or remove the prefix")

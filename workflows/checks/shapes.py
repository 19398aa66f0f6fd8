"""Check that the shape of the model fits its tokenizer, sequences, vLLM, Hugging Face and the model it starts from."""

from collections.abc import Iterator

from baton.infra.storage.buckets import StorageError
from baton.tasks.convert.families import read
from baton.tasks.convert.load_hf_spec import LoadHFSpec
from baton.tasks.convert.spec import unexportable
from baton.tasks.core.spec import Problem
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.models.tokenizer_files import vocabulary
from baton.tasks.vllm.architectures import HEAD_SIZES
from baton.workflows.checks.models import to_open, with_vllm
from baton.workflows.checks.run_context import RunContext, positions_of, vocabulary_of

# pretrain.model's fields as named in config.json
IN_CONFIG = {
    "family": "model_type", "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "vocab_size": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
}  # fmt: skip


def vocabulary_size(context: RunContext) -> list[Problem]:
    """Check that the embedding has a row for every token."""
    if not {"tokenizer", "pretrain"} <= context.specs.keys():
        return []
    rows, tokens = context.specs["pretrain"].model.vocab_size, context.specs["tokenizer"].size()
    if rows is None or tokens is None or rows >= tokens:
        return []
    return [Problem("pretrain.model.vocab_size", rows, f"at least the tokenizer's vocabulary ({tokens})")]


def positions(context: RunContext) -> Iterator[Problem]:
    """Check that no stage's sequences are longer than the model's positions."""
    known = positions_of(context)
    if known is None:
        return
    positions, where = known
    for name, spec in context.stages().items():
        for length, value in spec.sequence_lengths().items():
            if value > positions:
                yield Problem(f"{name}.{length}", value, f"at most {where} ({positions})")


def head_size(context: RunContext) -> list[Problem]:
    """Check that vLLM has attention kernels for the model's head size."""
    stages = with_vllm(context)
    if "pretrain" not in context.specs or not stages:
        return []
    size = context.specs["pretrain"].model.head_dim
    if size in HEAD_SIZES:
        return []
    allowed = f"one of {', '.join(map(str, HEAD_SIZES))}: vLLM ({', '.join(stages)}) supports no other"
    return [Problem("pretrain.model.head_dim", size, allowed)]


def convertible(context: RunContext) -> list[Problem]:
    """Check that the family's Hugging Face model can represent the trained one."""
    if "convert" not in context or "pretrain" not in context.specs:
        return []
    return [problem.under("pretrain.model") for problem in unexportable(context.specs["pretrain"].model)]


def same_model(context: RunContext) -> list[Problem]:
    """Check that the pretrained model has the shape of the one that it starts from."""
    if not {"pretrain", "init_from"} <= context.specs.keys():
        return []
    model, spec = context.specs["pretrain"].model, context.specs["init_from"]
    if initial := _initial(spec):
        rows = vocabulary_of(context) or initial.vocab_size
        unlike = model.model_copy(update={"vocab_size": rows}).unlike(initial)
    else:
        config = spec.config() or {}
        known = {name: (getattr(model, name), config.get(key)) for name, key in IN_CONFIG.items()}
        unlike = {name: (own, given) for name, (own, given) in known.items() if given is not None and own != given}
    return [
        Problem(f"pretrain.model.{name}", own, f"{given}, as init_from.model's {IN_CONFIG.get(name, name)} is")
        for name, (own, given) in unlike.items()
    ]


def _initial(spec: LoadHFSpec) -> ModelSpec | None:
    """The model to start from, if it is on this machine and can be trained; problems_of_models() reports why not."""
    try:
        if folder := to_open(spec):
            from baton.tasks.convert.from_spec import model_spec  # imports Transformers
            from baton.tasks.convert.megatron_model import full_config

            fields = full_config(folder)
            return model_spec(fields["model_type"], read(fields))
    except (ConversionError, StorageError):
        pass
    return None


def same_tokenizer(context: RunContext) -> list[Problem]:
    """Check that the tokens' ids are those of the model that pretraining starts from, if both are on this machine."""
    if not {"tokenizer", "init_from"} <= context.specs.keys():
        return []
    spec, model = context.specs["tokenizer"], context.specs["init_from"]
    expected = f"the tokenizer of init_from.model ({model.model}), whose weights are for its tokens"
    if spec.existing is None:
        return [Problem("tokenizer.existing", None, expected)]
    try:
        folders = spec.folder(), model.folder()
    except StorageError:
        return []  # missing() reports why
    ids, model_ids = (folder and vocabulary(folder) for folder in folders)
    if not ids or not model_ids:
        return []
    of_model = {number: token for token, number in model_ids.items()}
    other = [(number, token) for token, number in ids.items() if of_model.get(number, token) != token]
    if not other:
        return []
    number, token = min(other)
    example = f"{len(other)} ids are other tokens; {number}, for example, is {token!r} and not {of_model[number]!r}"
    return [Problem("tokenizer.existing", spec.existing, f"{expected}: {example}")]

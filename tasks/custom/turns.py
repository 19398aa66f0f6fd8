"""The tokenizer, the chat template and the ends of turns of a model that a user's function has made from others.

If the function writes no tokenizer, the model gets the tokenizer and template of its inputs. A tokenizer without the
chat template that an input has is refused. Generation ends at least where that of the inputs does.
"""

from collections.abc import Mapping
from pathlib import Path

from baton.tasks.core.job import Job, StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.models.hf_files import GENERATION
from baton.tasks.models.tokenizer_files import TOKENIZER
from baton.tasks.models.tokenizers import load
from baton.tasks.models.turns import Turns, add_ends, copy_turns, turns_of
from baton.tasks.posttrain.chat import chat_of

WRITE = "tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json"


def inherit_turns(job: Job, folder: Path, models: Mapping[str, Path]) -> None:
    """Complete the files of a new model in `folder`. `models` are the inputs that are models, by name. Raises
    StageError, ModelFilesError."""
    known = {name: turns_of(path) for name, path in models.items()}
    if known and not (folder / TOKENIZER).exists():
        given = (folder / GENERATION).read_bytes() if (folder / GENERATION).exists() else None
        copy_turns(models[_agreed(models, known)], folder)
        if given is not None:
            (folder / GENERATION).write_bytes(given)
    own = turns_of(folder)
    if own.templates:
        _keep_ends(job, folder, own, known)
    elif talking := [name for name, turns in known.items() if turns.templates]:
        raise StageError(
            f"it has no chat template, and its input {talking[-1]} has one: write {WRITE} of inputs[{talking[-1]!r}] "
            "beside the weights, or none of them, and it gets those of its inputs"
        )


def _keep_ends(job: Job, folder: Path, own: Turns, inputs: Mapping[str, Turns]) -> None:
    """Let generation end where the chat template ends a turn, if that of an input does."""
    tokenizer = load(folder)
    chats = [chat_of(tokenizer, tools) for tools in (False, True)]
    ends = {end for chat in chats for end in (chat.end, chat.end_of_calls)}
    lost = sorted(end for end in ends - own.ends if any(end in turns.ends for turns in inputs.values()))
    if lost:
        add_ends(folder, lost)
        tokens = ", ".join(tokenizer.convert_ids_to_tokens(lost))
        job.notice(f"generation ends at {tokens} too, as that of the inputs does: {GENERATION} did not say so")


def _agreed(models: Mapping[str, Path], known: Mapping[str, Turns]) -> str:
    """Return the input whose turns fit all: of the inputs with a chat template, one that ends turns wherever any of
    them does, preferably a tuned one rather than a base. Raises StageError if several remain that differ."""
    talking = {name: turns for name, turns in known.items() if turns.templates} or known
    left = [name for name, turns in talking.items() if all(turns.ends >= other.ends for other in talking.values())]
    left = [name for name in left if read_manifest(models[name]).facts.get("label") != "base"] or left
    if len({turns.tokenizer for turns in known.values()}) > 1:
        differ = "tokenizers"
    elif not left or any(known[name].templates != known[left[0]].templates for name in left):
        differ = "chat templates or ends of turns"
    else:
        return left[-1]
    raise StageError(
        f"it has no {TOKENIZER}, and its inputs {', '.join(talking)} have different {differ}: write {WRITE} of the one "
        "whose prompts the model is to answer"
    )

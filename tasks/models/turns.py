"""The format of a model's turns: its tokenizer, its chat templates, and the tokens that end generation.

This module writes these files for every form in which a model leaves Baton: a tuned model, an adapter, a published
model, and a model that a custom stage makes from others.

    add_ends(folder, ends)           generation ends at these tokens too
    copy_turns(source, target)       `target` has the turns of `source`
    turns_of(folder)                 what a model's files say, to compare
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from baton.infra.storage.durable import write_json
from baton.tasks.core.manifest import file_digest
from baton.tasks.models.hf_files import CONFIG, GENERATION, model_in
from baton.tasks.models.tokenizer_files import CONFIG as TOKENIZER_CONFIG
from baton.tasks.models.tokenizer_files import SPECIAL, TEMPLATE, TEMPLATES, TOKENIZER, chat_templates

FILES = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL, "added_tokens.json", TEMPLATE, "chat_template.json", GENERATION)


def with_ends(known: int | list[int] | None, ends: Iterable[int]) -> list[int]:
    """Return the tokens that end generation: the known ones, and `ends`."""
    return list(dict.fromkeys([*([known] if isinstance(known, int) else known or []), *ends]))


def add_ends(folder: Path, ends: Iterable[int]) -> None:
    """Add tokens that end generation to generation_config.json. A user's other settings there stay."""
    path = folder / GENERATION
    config = json.loads(path.read_text()) if path.exists() else {}
    before = config.get("eos_token_id", json.loads((folder / CONFIG).read_text()).get("eos_token_id"))
    after = with_ends(before, ends)
    if after not in (before, [before]):
        write_json(path, config | {"eos_token_id": after})


def copy_turns(source: Path, target: Path) -> None:
    """Replace the files of turns in `target` by those of `source`."""
    for name in FILES:
        (target / name).unlink(missing_ok=True)
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    shutil.rmtree(target / TEMPLATES, ignore_errors=True)
    if (source / TEMPLATES).is_dir():
        shutil.copytree(source / TEMPLATES, target / TEMPLATES, copy_function=shutil.copyfile)


@dataclass(frozen=True)
class Turns:
    """The content of these files of a model."""

    tokenizer: str  # digest of tokenizer.json; empty if there is none
    templates: dict[str, str]  # chat templates by name
    ends: frozenset[int]  # those of generation_config.json; without that file, those of config.json and the tokenizer


def turns_of(folder: Path) -> Turns:
    """Read the turns of a model. Raises StageError, ModelFilesError."""
    files = model_in(folder)
    tokenizer = folder / TOKENIZER
    ends = files.eos_of_generation if files.generation else files.eos_ids
    return Turns(file_digest(tokenizer) if tokenizer.exists() else "", chat_templates(folder), frozenset(ends))

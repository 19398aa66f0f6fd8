"""Where a model's turns begin and end: its tokenizer, its chat templates, and the tokens that end generation.

Every form of a model that leaves Baton has these files from here: a tuned model, an adapter, what is published, and a
model that a custom stage makes of others.

    add_ends(folder, ends)           generation ends at these tokens too
    copy_turns(source, target)       `target` has the turns of `source`
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from infra.storage.durable import write_json
from tasks.models.hf_files import CONFIG, GENERATION
from tasks.models.tokenizer_files import CONFIG as TOKENIZER_CONFIG
from tasks.models.tokenizer_files import SPECIAL, TEMPLATE, TEMPLATES, TOKENIZER

FILES = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL, "added_tokens.json", TEMPLATE, "chat_template.json", GENERATION)


def with_ends(known: int | list[int] | None, ends: Iterable[int]) -> list[int]:
    """The tokens that end generation: the known ones, and `ends`."""
    return list(dict.fromkeys([*([known] if isinstance(known, int) else known or []), *ends]))


def add_ends(folder: Path, ends: Iterable[int]) -> None:
    """Let generation end at these tokens too, in generation_config.json. What else a user has set there stays."""
    path = folder / GENERATION
    config = json.loads(path.read_text()) if path.exists() else {}
    before = config.get("eos_token_id", json.loads((folder / CONFIG).read_text()).get("eos_token_id"))
    after = with_ends(before, ends)
    if after not in (before, [before]):
        write_json(path, config | {"eos_token_id": after})


def copy_turns(source: Path, target: Path) -> None:
    """Copy the files that say so, in place of those that `target` has."""
    for name in FILES:
        (target / name).unlink(missing_ok=True)
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    shutil.rmtree(target / TEMPLATES, ignore_errors=True)
    if (source / TEMPLATES).is_dir():
        shutil.copytree(source / TEMPLATES, target / TEMPLATES, copy_function=shutil.copyfile)

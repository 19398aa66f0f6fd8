"""Check what a user's function has written and returned: it is taken as it is, or refused."""

import os
import re
from pathlib import Path
from typing import Any

from baton.tasks.convert.unconverted_files import adapter_problem
from baton.tasks.core.job import StageError
from baton.tasks.core.json_data import not_json, shown
from baton.tasks.core.manifest import MANIFEST, RECORD
from baton.tasks.models.hf_files import CONFIG, GENERATION, INDEX, listing, model_in
from baton.tasks.models.tokenizer_files import TEMPLATES

RESERVED = ("directory", "digest", "identity")  # of every artifact
# Files of a tokenizer, and of one that Transformers saved for its older versions: tokenizer.json has what they say
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "chat_template.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model",
)  # fmt: skip
UNUSED = ("README.md", "LICENSE", "LICENSE.txt", MANIFEST)  # publishing writes a card
_MANIFEST_FILE = re.compile(rf"{re.escape(MANIFEST)}(\.[0-9a-f]+\.partial)?")
_ODD_NAME = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def checked_facts(facts: Any, stage: str, *, of_model: bool) -> dict[str, Any]:
    """Return the function's result as facts. Raises StageError."""
    if not isinstance(facts, dict | None):
        raise StageError(f"{stage} returned {facts!r:.60}; a stage returns None or a dictionary of facts")
    if found := not_json(facts):
        allowed = "by names: float(x) of a NumPy number, a list for a tuple, None for NaN"
        raise StageError(f"{stage} returned {shown(facts, 200)}; facts are values that JSON has, {allowed}; {found}")
    if facts and of_model:
        raise StageError(
            f"{stage} returned {shown(facts, 200)}; the facts of a model are read from its files: return None, or make "
            "another stage of them (makes: artifact)"
        )
    if taken := [name for name in RESERVED if name in (facts or {})]:
        raise StageError(f"{stage} returned the fact {taken[0]}, a name that every artifact uses: rename it")
    return facts or {}


def check_artifact(folder: Path, stage: str) -> list[str]:
    """Raises StageError if an artifact cannot hold what is in the folder. Empty subfolders, which it cannot hold
    either, are removed; returns their names."""
    if folder.is_symlink() or not folder.is_dir():
        raise StageError(f"{stage} removed the folder `output`, or put something else in its place")
    wrong, removed = [], []
    for parent, folders, files in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in sorted([*folders, *files])):
            name = path.relative_to(folder).as_posix()
            if path.is_symlink():
                wrong.append(f"{name!a} is a link to {str(path.readlink())!a:.200}: copy the file")
            elif path.is_dir():
                if name != RECORD and not any(path.iterdir()):
                    path.rmdir()
                    removed.append(f"{name}/")
            elif not path.is_file():
                wrong.append(f"{name!a} is a pipe, a socket or a device: write a file")
            if _ODD_NAME.search(name):
                wrong.append(f"the name {name!a} has characters that not every storage keeps: rename it")
            if _MANIFEST_FILE.fullmatch(name):
                wrong.append(f"{name} is Baton's own file: rename it")
    if wrong:
        raise StageError(f"{stage} wrote what an artifact cannot hold: {listing(wrong)}")
    return sorted(removed)


def check_model(folder: Path) -> list[str]:
    """Raises StageError, ModelFilesError if a model's folder has what would be left out of it; hidden files belong to
    tools. Returns the names of files about it, which are left out."""
    if adapter_problem(folder):
        return []  # said where it is read
    used = {CONFIG, GENERATION, *TOKENIZER_FILES, *model_in(folder).weight_files, *UNUSED}
    odd = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        top, _, rest = name.partition("/")
        of_templates = top == TEMPLATES and (path.is_dir() if not rest else path.suffix == ".jinja" and "/" not in rest)
        if (
            top == RECORD
            or top.startswith(".")
            or of_templates
            or ((name in used or path.suffix == ".tiktoken") and path.is_file())
        ):
            continue
        if not path.is_dir() or path.is_symlink() or not any(path.iterdir()):
            odd.append(name if path.exists() else f"{name} (a link to nothing)")
    if odd:
        raise StageError(
            f"it has files that are no part of a model, and would be left out: {listing(odd)}. {INDEX} lists its "
            "weights; write others in a stage of their own (makes: artifact), or into job.work"
        )
    return [name for name in UNUSED if name != MANIFEST and (folder / name).exists()]

"""The content of the files in a tokenizer's folder, read without loading the tokenizer.

A tokenizer is its tokenizer.json (https://huggingface.co/docs/tokenizers). The files beside it name its special tokens
and chat templates, and a class of Transformers, which is not used: see tasks/models/tokenizers.py.

Of several chat templates Transformers' rule applies: "tool_use" for a conversation with tools, if there is one of this
name, and "default" for all others. A single template is the default, whatever its name is.
"""

import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from baton.infra.storage.unique_keys import strict_json
from baton.tasks.core.job import StageError
from baton.tasks.core.spec import Problem

TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
SPECIAL = "special_tokens_map.json"
TEMPLATES = "additional_chat_templates"  # a folder
FILES = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken", f"{TEMPLATES}/*.jinja")

DEFAULT, WITH_TOOLS = "default", "tool_use"  # names of templates that Transformers knows

# Settings that do not change tokens. Others are left out: for example, `split_special_tokens` would encode the special
# tokens of a chat as text, and `clean_up_tokenization_spaces` deletes spaces when tokens are decoded.
NEUTRAL_SETTINGS = {
    "model_max_length": int | float,
    "padding_side": str,
    "truncation_side": str,
    "response_template": dict,
}

_MARKUP = re.compile(r"(?=.*\w)(?=.*[^\w\s])", re.DOTALL)  # such as <tool_call>: a letter and a sign


def described(folder: Path, vocabulary: Mapping[str, int], special: Set[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the content of a tokenizer_config.json with the special tokens that tokenizer.json has, and the names of
    those that it lacks. `special` are the tokens that tokenizer.json marks as special. Raises StageError if the folder
    has another id for a token than tokenizer.json."""
    given = with_special(_json(folder / CONFIG), _json(folder / SPECIAL))
    if wrong := [
        name for name, kind in NEUTRAL_SETTINGS.items() if given.get(name) and not isinstance(given[name], kind)
    ]:
        raise StageError(f"{folder / CONFIG}: {wrong[0]}: {given[wrong[0]]!r} is of the wrong type")
    _check_ids(folder, given, vocabulary)
    tokens = {name: value for name, value in given.items() if name.endswith("_token")}
    more: dict[str, None] = {}
    for group in (given.get("additional_special_tokens"), given.get("extra_special_tokens")):
        if isinstance(group, dict):  # has tokens by name, such as an image's
            tokens |= group
        more |= dict.fromkeys(filter(None, map(_text, group))) if isinstance(group, list) else {}
    named = {name: text for name, token in tokens.items() if (text := _text(token))}
    absent = [f"{token} ({name})" for name, token in named.items() if token not in vocabulary]
    absent += [token for token in more if token not in vocabulary]
    known = {name: token for name, token in sorted(named.items()) if token in vocabulary}
    if "eos_token" in known:
        known.setdefault("pad_token", known["eos_token"])  # a usual choice, since padding is masked in every loss
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **known,
        "additional_special_tokens": [token for token in more if token in special],
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        **{name: given[name] for name in NEUTRAL_SETTINGS if given.get(name)},
    }, absent


def contradictions(folder: Path, begins: bool, ends: bool) -> list[str]:
    """Return the settings of tokenizer_config.json that contradict tokenizer.json. Transformers' own classes apply the
    former, Baton the latter. `begins` and `ends` are whether tokenizer.json adds tokens before and after a text. Raises
    StageError."""
    given = _json(folder / CONFIG)
    says = {"add_bos_token": begins, "add_eos_token": ends, "split_special_tokens": False}
    return [
        f"{name}: {str(given[name]).lower()}"
        for name, does in says.items()
        if isinstance(given.get(name), bool) and given[name] != does
    ]


def with_special(config: dict[str, Any], special: dict[str, Any]) -> dict[str, Any]:
    """Return the content of tokenizer_config.json with the tokens of special_tokens_map.json as Transformers reads
    them."""
    return config if "added_tokens_decoder" in config else config | special


def vocabulary(folder: Path) -> dict[str, int] | None:
    """Return the ids of the tokens in tokenizer.json; None if the file is missing or damaged."""
    try:
        return token_ids(_json(folder / TOKENIZER))
    except (StageError, KeyError, TypeError, ValueError):
        return None


def token_ids(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the tokens in the content of tokenizer.json. Raises KeyError, TypeError or ValueError if it is
    damaged."""
    entries = content["model"]["vocab"]  # ids by token in BPE; a list of tokens and scores in Unigram
    ids = entries if isinstance(entries, dict) else {token: number for number, (token, _) in enumerate(entries)}
    return ids | {token["content"]: token["id"] for token in content.get("added_tokens") or ()}


def added_tokens(folder: Path) -> list[tuple[str, int]]:
    """Return the tokens that tokenizer.json has besides its vocabulary, and their ids. Raises StageError."""
    return [(token["content"], token["id"]) for token in _added(folder)]


def reserved(folder: Path) -> list[str]:
    """Return the added tokens that text of a corpus must not be able to produce: those that tokenizer.json marks as
    special and, of the others, which some families have for turns and tools, those that tokenizer_config.json names
    (EOS, BOS, …) or a chat template writes. Words and white space, which every template has, are excluded. Raises
    StageError."""
    given = with_special(_json(folder / CONFIG), _json(folder / SPECIAL))
    named = {_text(token) for name, token in given.items() if name.endswith("_token")}
    templates = "\n".join(_templates(folder).values())
    return [
        text
        for text, special in ((each["content"], each["special"]) for each in _added(folder))
        if special or text in named or (text in templates and _MARKUP.match(text))
    ]


def chat_templates(folder: Path, name: str | None = None) -> dict[str, str]:
    """Return the chat templates to use by name, or only the one called `name`. Empty if the folder has none. Raises
    StageError if none of several is the default."""
    templates = _templates(folder)
    if name is not None:
        if name not in templates:
            raise StageError(f"there is no chat template {name!r}; there are {', '.join(sorted(templates)) or 'none'}")
        return {DEFAULT: templates[name]}
    if len(templates) == 1:
        return {DEFAULT: next(iter(templates.values()))}
    if templates and DEFAULT not in templates:
        raise StageError(
            f"there are the chat templates {', '.join(sorted(templates))}, and none is called {DEFAULT}: choose one "
            "with `chat_template`"
        )
    return templates


def template_problem(folder: Path, name: str | None) -> list[Problem]:
    """Return the problem of a spec whose `chat_template` is `name`, if `chat_templates` raises for a local folder."""
    try:
        chat_templates(folder, name)
    except StageError as error:
        return [Problem("chat_template", name, str(error))]
    return []


def has_chat_template(folder: Path) -> bool:
    return bool(_templates(folder))


def _templates(folder: Path) -> dict[str, str]:
    """Return all templates by name. As in Transformers, chat_template.jinja replaces those in tokenizer_config.json,
    and a file in additional_chat_templates/ replaces the template of its name."""
    files = {path.stem: path for path in sorted((folder / TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE).is_file():
        files[DEFAULT] = folder / TEMPLATE
        others = {}
    else:  # chat_template.json is a processor's file, which Transformers' tokenizers do not read
        places = (folder / CONFIG, folder / "chat_template.json")
        others = next((templates for path in places if (templates := _named(path))), {})
    return others | {name: _read(path) for name, path in files.items()}


def _named(path: Path) -> dict[str, str]:
    """Return the templates in the field `chat_template` of a file, which has a template, a list of templates with
    names, or a mapping. Raises StageError."""
    value = _json(path).get("chat_template") or {}
    if isinstance(value, str):
        return {DEFAULT: value}
    try:
        templates = value if isinstance(value, dict) else {each["name"]: each["template"] for each in value}
    except (KeyError, TypeError):
        templates = {DEFAULT: None}
    if not all(isinstance(text, str) for text in templates.values()):
        raise StageError(f"{path}: chat_template: a template, or a list of objects with name and template expected")
    if len(templates) < len(value):
        raise StageError(f"{path}: chat_template: several of {', '.join(templates)} have one name: keep one of each")
    return templates


def _check_ids(folder: Path, given: Mapping[str, Any], vocabulary: Mapping[str, int]) -> None:
    """Raise StageError for tokens that tokenizer.json lacks or has under another id. Transformers would add such a
    token, at an id that the model may know as another token or not at all."""
    decoder = given.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise StageError(f"{folder / CONFIG}: added_tokens_decoder: an object with a token for each id expected")
    added = [(str(number), _text(token)) for number, token in decoder.items()]
    added = added or [(str(number), token) for token, number in _json(folder / "added_tokens.json").items()]
    wrong = [f"{token} {number}" for number, token in added if token and str(vocabulary.get(token)) != number]
    if wrong:
        where = CONFIG if decoder else "added_tokens.json"
        raise StageError(
            f"{folder}: {where} has tokens that {TOKENIZER} lacks or gives another id: {', '.join(wrong[:8])}. "
            f"{TOKENIZER} is what tokenizes: add them to it (tokenizers.Tokenizer.add_special_tokens), or delete them "
            f"from {where}"
        )


def _added(folder: Path) -> list[dict[str, Any]]:
    return _json(folder / TOKENIZER).get("added_tokens") or []


def _text(token: Any) -> str | None:
    """Return the text of a token, which some files store with its properties."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no file. Raises StageError."""
    if not path.exists():
        return {}
    try:
        content = strict_json(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: deep nesting
        raise StageError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise StageError(f"{path}: an object expected")
    return content


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise StageError(f"{path}: cannot be read: {error}") from error

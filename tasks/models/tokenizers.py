"""Load tokenizers, the only module of Baton that does.

    load(folder)             as Transformers has it, for rows: special tokens in a text are recognized
    plain(folder)            as the tokenizers library has it, for the text of a corpus: they are ordinary text
    write(source, target)    take over a tokenizer into an artifact
    alone(folder)            a folder for engines, which load tokenizers themselves

A tokenizer is its tokenizer.json. Transformers' AutoTokenizer (5.17) does not load that file unchanged if the other
files or the model's config name one of its own classes: it uses the vocabulary, and the defaults of the class for the
rest. A byte-level tokenizer.json with LlamaTokenizerFast loses every space, and Qwen2's class adds a token that the
embedding lacks. The class PreTrainedTokenizerFast loads tokenizer.json unchanged; `write` names it, and `check`
verifies this on a sample.
"""

import json
import shutil
import string
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unicodedata import normalize

from tokenizers import Tokenizer, models

from baton.infra.paths import cache_folder
from baton.infra.storage.durable import rename, sync_tree, write_json
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import file_digest, text_digest
from baton.tasks.models.tokenizer_files import (
    CONFIG,
    DEFAULT,
    TEMPLATE,
    TOKENIZER,
    added_tokens,
    chat_templates,
    contradictions,
    described,
    reserved,
)

SAMPLE = (
    "",
    string.printable,
    " leading, two  spaces, trailing ",
    "def f(x):\n\treturn  x\n\n\n    # 1234567.890 + 0x1F\r\n",
    "Grüße, naïve café — “quoted”, 漢字かな, Привет, שלום, नमस्ते, 👩‍👩‍👧 🙂, e\u0301, \u00a0\u200b.",
    "don't WON'T i18n snake_case camelCase https://example.org/?q=a&b=c <tag> {{ x }} [INST] </s>",
)
LETTERS = [*dict.fromkeys(each for each in "".join(SAMPLE) if each.isalnum() or each in string.punctuation)]
PROBES = {  # text that a tokenizer may change
    "upper case": "Ab",
    "accents": "é",
    "digits": "12",
    "spaces": "a b",
    "several spaces": "a  b",
    "tabs": "a\tb",
    "line ends": "a\nb",
    "indentation": "a\n    b",
    "ligatures": "ﬁ",
    "full-width letters": "Ａ",
    "superscripts": "x²",
    "emoji": "🙂",
    "white space around a text": "\n\ta \n",
}
UNKNOWN = "\U00010600"  # Linear A: a letter, so no normalizer removes it, and no vocabulary has it as one token
MOST_SPECIAL = 300  # special tokens that are tried
# This model type names no tokenizer class. Without the version, Transformers (5.17, in `_patch_mistral_regex`) mistakes
# a large vocabulary for one of Mistral's with a wrong pattern, and warns.
NO_CLASS = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "transformers_version": "5.0.0"}


def load(folder: Path, template: str | None = None) -> Any:
    """Load a tokenizer with Transformers, with its chat templates or only the one called `template`. Raises
    StageError."""
    from transformers import PreTrainedTokenizerFast

    with TemporaryDirectory() as place:
        write(folder, Path(place), template)
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(place, local_files_only=True)
        except Exception as error:  # Transformers validates little, so a wrong value may raise any exception
            raise StageError(f"{folder / CONFIG}: {type(error).__name__}: {error}") from error
    tokenizer.name_or_path = str(folder)
    tokenizer.backend_tokenizer.no_truncation()  # a tokenizer.json may enable either
    tokenizer.backend_tokenizer.no_padding()
    check(tokenizer, folder)
    return tokenizer


def plain(folder: Path) -> Tokenizer:
    """Load a tokenizer for the text of a corpus, which must not be able to end a document or begin a turn: reserved
    tokens (`tokenizer_files.reserved`) in it are ordinary text. Raises StageError."""
    tokenizer, names = _opened(folder), reserved(folder)
    ids = {name: tokenizer.token_to_id(name) for name in names}
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.add_special_tokens(names)  # changes no id, but marks those as special that the file does not
        tokenizer.encode_special_tokens = True
    else:
        tokenizer = _renamed(tokenizer, names)
    unknown = tokenizer.encode(UNKNOWN, add_special_tokens=False).ids
    for name in names:
        texts = (name, f"a {name} b{name}\n{name}")
        encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        if ids[name] in set().union(*encoded) - {*unknown}:
            raise StageError(
                f"{folder}: text that has {name!r} would become this token, which must not be in a document; use a "
                "tokenizer that splits it"
            )
    return tokenizer


def _renamed(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """Rename tokens, without a change of their ids, to names that no text has. Models other than BPE also have these
    tokens as words of their vocabulary."""

    def renamed(name: str) -> str:
        return f"\0{name}" if name in names else name

    content = json.loads(tokenizer.to_str())
    model, vocabulary = content["model"], content["model"]["vocab"]
    model["vocab"] = (
        {renamed(name): number for name, number in vocabulary.items()}
        if isinstance(vocabulary, dict)
        else [[renamed(name), score] for name, score in vocabulary]
    )
    if "unk_token" in model:
        model["unk_token"] = renamed(model["unk_token"])
    for token in content["added_tokens"]:
        token["content"] = renamed(token["content"])
    return Tokenizer.from_str(json.dumps(content))


def beginning(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that a tokenizer adds before every text: BOS, if any."""
    return _added(tokenizer)[0]


def parsed(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a prompt, a completion or a rendered chat. Special tokens in the text are recognized, and
    none are added. As in Transformers and vLLM, this includes those that a user has written in a message."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def begun(begin: list[int], ids: Sequence[int]) -> list[int]:
    """Return these tokens preceded by a tokenizer's `beginning`, unless they already begin with it."""
    return [*ids] if list(ids[: len(begin)]) == begin else [*begin, *ids]


def write(source: Path, target: Path, template: str | None = None) -> list[str]:
    """Write a folder's tokenizer to another folder: tokenizer.json byte for byte, tokenizer_config.json with the
    special tokens that it has, and the chat templates or only the one called `template`. Returns notices for the user.
    Raises StageError."""
    opened = _opened(source)
    config, absent = described(source, opened.get_vocab(with_added_tokens=True), set(_special(opened)))
    templates = chat_templates(source, template)
    if len(templates) > 1:  # in one file, since all versions of Transformers read this form
        config["chat_template"] = [{"name": name, "template": text} for name, text in sorted(templates.items())]
    elif templates:
        (target / TEMPLATE).write_text(templates[DEFAULT], encoding="utf-8")
    shutil.copyfile(source / TOKENIZER, target / TOKENIZER)
    write_json(target / CONFIG, config)
    notices = [f"{', '.join(absent)}: left out, since {TOKENIZER} has no such token"] if absent else []
    begin, behind = _added(opened)
    if other := contradictions(source, bool(begin), bool(behind)):
        notices.append(
            f"{CONFIG} says {', '.join(other)}, but {TOKENIZER}, which Baton follows, differs: if the model was "
            f"trained by the former, change the post_processor of {TOKENIZER}"
        )
    if behind:
        end = "".join(opened.id_to_token(token) or "" for token in behind)
        notices.append(
            f"the tokenizer appends {end} to every text: Baton leaves it out, but Transformers and vLLM append it to "
            "prompts too, and the model then continues a text that has ended. Remove it from the post_processor of "
            f"{TOKENIZER}"
        )
    if lost := _lost(opened):
        notices.append(
            f"the tokenizer does not know {len(lost)} of {len(LETTERS)} characters that were tried, such as "
            f"{' '.join(lost[:8])}: they are lost, in text that is learned and in prompts"
        )
    if changed := _changed(opened, lost):
        notices.append(
            f"the tokenizer does not keep {'; '.join(changed)}: in text that is learned and in prompts. Bits per byte "
            "count what it loses as known"
        )
    return notices


def check(tokenizer: Any, folder: Path) -> None:
    """Compare a tokenizer of Transformers with `folder`'s tokenizer.json: its vocabulary and, for some texts, the ids
    and the text decoded from them. Raises StageError."""
    expected = _opened(folder)
    if tokenizer.get_vocab() != expected.get_vocab(with_added_tokens=True):
        raise StageError(f"{folder}: {type(tokenizer).__name__} does not have the vocabulary of {TOKENIZER}")
    # Transformers recognizes the tokens in tokenizer_config.json even if tokenizer.json does not mark them as special.
    expected.add_special_tokens(sorted(set(tokenizer.all_special_tokens) - set(_special(expected))))
    texts = [*SAMPLE, " ".join(f"a{token} b" for token in _special(expected)[:MOST_SPECIAL])]
    for text in texts:
        for special in (True, False):
            ids = expected.encode(text, add_special_tokens=special).ids
            encoded = tokenizer.encode(text, add_special_tokens=special)
            decoded, shown = (each.decode(ids, skip_special_tokens=False) for each in (expected, tokenizer))
            if encoded != ids or shown != decoded:
                raise StageError(
                    f"{folder}: {type(tokenizer).__name__} does not tokenize {text!r:.80} as {TOKENIZER} does: "
                    f"{tokenizer.decode(encoded)!r:.80}"
                )


def elsewhere(model: Path) -> list[str]:
    """Return a notice for users who load a model's tokenizer without Baton if AutoTokenizer changes it."""
    from transformers import AutoTokenizer

    try:
        check(AutoTokenizer.from_pretrained(model, local_files_only=True), model)
    except Exception as error:  # a class may refuse the vocabulary with any exception
        return [f"load its tokenizer with PreTrainedTokenizerFast: Transformers' AutoTokenizer changes it ({error})"]
    return []


def size(tokenizer: Any) -> int:
    """Return the number of rows that a tokenizer needs in an embedding: up to the highest id, even if lower ids are
    unused."""
    return 1 + max(map(int, tokenizer.get_vocab().values()))


def alone(folder: Path) -> Path:
    """Return a folder in this node's cache that has only a model's tokenizer and a config without a tokenizer class. In
    a model's folder AutoTokenizer also reads config.json, and uses Qwen2's class for every model of its type (5.17;
    while `MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS` has "qwen2"). Without a config.json, vLLM (0.31; while its
    `get_tokenizer` reads a config with retries) waits two seconds and prints errors."""
    cache = cache_folder("tokenizers")
    with TemporaryDirectory(dir=cache, prefix="partial-") as place:
        target = Path(place) / "target"
        target.mkdir()
        write(folder, target)
        write_json(target / "config.json", NO_CLASS)
        digest = text_digest("".join(f"{path.name} {file_digest(path)}\n" for path in sorted(target.iterdir())))
        if not (cache / digest).exists():
            sync_tree(target)
            with suppress(OSError):  # another process was faster
                rename(target, cache / digest)
    return cache / digest


def _opened(folder: Path) -> Tokenizer:
    path = folder / TOKENIZER
    if not path.is_file():
        others = ", ".join(sorted(each.name for each in folder.glob("*") if each.suffix in (".model", ".tiktoken")))
        raise StageError(
            f"{folder}: has no {TOKENIZER}{f', only {others}' if others else ''}. Baton does not convert other files, "
            "since Transformers' conversion changes tokens (5.17): use a revision that has one, or write one, and "
            "compare its ids with those of the original"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise StageError(f"{path}: cannot be read: {error}") from error
    ids = [(text, given, tokenizer.token_to_id(text)) for text, given in added_tokens(folder)]
    if wrong := [f"{text} {given} (becomes {known})" for text, given, known in ids if given != known]:
        raise StageError(
            f"{path}: the tokenizers library gives added_tokens other ids than the file: {', '.join(wrong[:8])}. It "
            "numbers those that the vocabulary lacks in the file's order, without gaps: add what is missing in between"
        )
    if dropout := getattr(tokenizer.model, "dropout", None):
        raise StageError(f"{path}: its model has dropout {dropout:g}, which makes tokens random: set it to null")
    tokenizer.no_truncation()  # the file may enable either
    tokenizer.no_padding()
    return tokenizer


def _added(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer adds before and after every text."""
    encoding = tokenizer.encode("".join(SAMPLE))  # a single letter could be unknown and dropped
    own = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence is not None]
    return (encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]) if own else ([], [])


def _lost(tokenizer: Tokenizer) -> list[str]:
    """Return the letters that become no token, or the token for unknown text."""

    def back(text: str) -> str:
        return str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids)).strip()

    unknown = {"", back(UNKNOWN)}
    return [letter for letter in LETTERS if back(letter) in unknown]


def _changed(tokenizer: Tokenizer, lost: Sequence[str]) -> list[str]:
    """Return the kinds of text that a tokenizer changes, apart from lost letters. Another form of the same characters
    (NFC) is not a change."""
    back = {
        kind: str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids))
        for kind, text in PROBES.items()
        if not set(text) & {*lost}
    }
    return [
        f"{kind} ({PROBES[kind]!r} becomes {text!r})"
        for kind, text in back.items()
        if PROBES[kind] not in normalize("NFC", text)
    ]


def _special(tokenizer: Tokenizer) -> list[str]:
    return [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items()) if token.special]

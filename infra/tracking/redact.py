"""Redact secrets from specs, command lines and messages, before they reach the spool, MLflow or a log.

Covered: fields, options and variables with a secret's name, user info and signatures in URLs, `Authorization` and
`Cookie` headers, private keys, and well-known formats of tokens and webhooks (infra/tracking/secret_names.py); a
placement's `setup` is replaced by its digest. Not covered: a secret in free text without a recognizable format.

Each line is redacted independently, except in a private key. Thus a part of a text is redacted as in the complete text
if it is known whether a private key continues in it (`hide_keys`).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any

from baton.infra.text import uncoloured
from baton.infra.tracking.secret_names import (
    A_FILE,
    NO_SECRETS,
    NUMBER,
    PLACEHOLDER,
    SHAPES,
    is_path,
    is_plain_value,
    is_secret,
    is_short,
)

HIDDEN = "[redacted]"
SETUP_DIGEST = "setup_digest"  # replaces a placement's setup
KEY_CHARACTERS = 32_000  # limit for a private key that has no end

# not in a sentence: `no -----BEGIN PRIVATE KEY----- in it`
_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?![\"'`]?[,.;]?[^\S\n]+[A-Za-z]{1,15}[\s,.])")
_KEY_ENDS = re.compile(r"-----(?:BEGIN|END) ")
_GAP = r"(?:\{[^{}\n]{0,80}\}|\$\{?\w+\}?|%\(\w+\)s|%s)"  # in a template: its value stands elsewhere
_USERINFO = re.compile(
    rf"(?P<name>\b[a-zA-Z][a-zA-Z0-9+.\-]{{0,30}}://(?!git@)|(?<![:\w/])//(?=[^/\s'\"@:]{{1,100}}:))"
    rf"(?!(?:[\w.\-]+:)?{_GAP}(?::{_GAP})?@)[^/\s'\"]+@"
)
_QUERY = re.compile(r"(?P<name>(?:[?&]|\\u0026)(?:amp;)?(?P<word>[\w.\-]{1,80})=)(?P<value>[^&\s'\"<>\\]+)")
_TEMPLATE = re.compile(_GAP)
_SIGNATURE = re.compile(r"(^|[_-])(sig|signature)$|^key$", re.IGNORECASE)
_COOKIE = re.compile(
    r"(?P<name>\b(?:(?:set-)?cookie2?[\"']?\s?:[^\S\n]{0,3}[\"']?|curl\b[^\n|]{0,500}?\s(?:-b|--cookie)[ =]?[\"']?))"
    r"(?P<value>[^\s=;\"']+=[^\n\"']*)",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?P<name>\bauthorization[\"']?[^\S\n]?[:=][^\S\n]{0,3}[\"']?[A-Za-z][\w\-]*[^\S\n]{1,3})"
    r"(?P<value>(?!\$)(?:[\w\-]+=[^\n']+|[^\s\"']+))",
    re.IGNORECASE,
)
# `basic functionality` and `bearer tokens` are prose; base64 has a capital, a digit or = somewhere
_SCHEME = re.compile(
    r"(?P<name>\b(?:[Bb]earer|BEARER)[^\S\n]{1,3}(?!(?:tokens?|[Aa]uth\w*|scheme|header|credentials?)\b)"
    r"|\b(?:[Bb]asic|BASIC)[^\S\n]{1,3}(?=[\w.~+/\-]{1,200}[A-Z0-9=])(?![A-Za-z][a-z]+[-_ ]))"
    r"(?P<value>(?!\$)[\w.~+/=\-]{8,})"
)
# of a command: -u NAME:PASSWORD, docker login -p PASSWORD, mysql -pPASSWORD
_USER = re.compile(
    r"(?<!\S)(?P<name>(?:-u|--user)[ =]?[\"']?(?!\d+:\d+\b)[^\s:\"'$]{1,60}:"
    r"|(?:sshpass|(?:docker|podman|nerdctl|helm registry|oras|skopeo|az|oc) login)\b[^\n|;&]{0,200}?\s-p[ =]?[\"']?"
    r"|(?:mysql|mysqldump|mariadb|mysqladmin)\b[^\n|;&]{0,200}?\s-p[\"']?(?=\S))(?P<value>(?!\$)[^\s\"']+)"
)
_ELEMENT = re.compile(r"<(?P<word>[A-Za-z_][\w.:\-]{0,60})(?P<by>>)(?P<quoted>[^<>\n]+)(?=</)")
_NAMED = re.compile(
    r"(?:(?<![\w.\-])|\\[nrt]|%[0-9A-Fa-f]{2})(?:(?P<option>--)|-)?(?:\\{0,3}[\"'])?(?P<word>[A-Za-z_][\w.\-]{0,60})"
    r"(?:\\{0,3}[\"'])?\]?"
    r"(?P<by>[^\S\n]?:?=>?(?!=)[^\S\n]?|[^\S\n]?:(?!:)[^\S\n]{0,20}|%3[Dd]"
    r"|,?[^\S\n]{1,3}(?:\\{0,3}[\"'])?value(?:\\{0,3}[\"'])?[^\S\n]?[:=][^\S\n]?"  # {name: HF_TOKEN, value: …}
    r"|(?(option)[^\S\n]{1,3}(?!-)|(?!)))"
)
# the password is …, ENV SOME_KEY …, Incorrect API key provided: …
_PROSE = re.compile(
    r"(?<![\w.\-])(?P<word>[A-Za-z_][\w.\-]{0,60}|(?i:api|access|secret) key)"
    r"(?:[^\S\n]{1,3}(?:is|was|provided|given))?:?[^\S\n]{1,3}[\"'`]?"
    r"(?P<value>(?=[\w.~+/=\-]*[a-z])(?=[\w.~+/=\-]*[A-Z])(?=[\w.~+/=\-]*\d)[\w.~+/=\-]{16,})"
)
_GROUP = re.compile(r"[\[(][^\[\]()\n]*[\])]")  # a list or a tuple
_QUOTED = re.compile(r"(?P<quote>\\{0,3}[\"'])(?P<quoted>(?:(?!(?P=quote))[^\n])+)(?P=quote)")
# a literal value, also one whose quote was cut off: `$NAME` and `$(command)` only refer to a secret
_VALUE = re.compile(
    r"(?:[A-Za-z_][\w.]{0,60}\([^\S\n]?)?(?:[bBrRuUfF]{1,2}(?=[\"']))?"
    r"(?:(?P<quote>[\"'])(?!(?<=\")\$)(?P<quoted>(?:\\.|(?!(?P=quote))[^\n\\])+)(?P=quote)"
    r"|(?P<escaped>\\{1,3}[\"'])(?P<inner>(?:(?!(?P=escaped))[^\n])+?)(?P=escaped)"
    r"|[\"'](?!(?<=\")\$)(?P<cut>[^\"'\n]+)(?=\n|\Z))"
    r"|(?P<bare>(?![$\"'\\])[^\s\"'&;,|)}]+)"
)
_BRACKETS = ("[", "{", "(", "<")
# types and expressions, in the lines of code that a traceback shows
_SOURCE = re.compile(r"(?:str|bytes|int|float|bool|object|Any|SecretStr|Optional\[.*|[\[({].*)[:,]?")
_COLOURED = re.compile(r"[^\n]*\x1b\[[^\n]*")
_TOKEN_IN_CODE = re.compile(r"(?<!api_)(?<!access_)(?<!auth_)(?<!hf_)tokens?$", re.IGNORECASE)
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.~+/=\-]{16,}")
_CODE = re.compile(r"[A-Za-z_][\w.]*[\[(]|(self|args|config|settings|options|spec|os|row)\.\w")
_SUBJECT = re.compile(r"^[A-Z0-9_]+$|secrets$")  # our messages begin with a variable, or with placement.secrets


def redact_text(text: str) -> str:
    """The text with its secrets hidden; its lines stay lines."""
    return redact_lines(hide_keys(text)[0])


def redact_lines(text: str) -> str:
    """The text with its secrets hidden, except for private keys; each line independently of the others."""
    return _redacted(_COLOURED.sub(_without_colours, text) if "\x1b" in text else text)


def _redacted(text: str) -> str:
    text = _by_format(text)
    for pattern in (_COOKIE, _SCHEME, _HEADER, _USER):
        text = pattern.sub(_in_header, text)
    text = _PROSE.sub(_in_prose, _ELEMENT.sub(_in_element, text))
    return _hide_named(text, _is_named)


def _without_colours(line: re.Match[str]) -> str:
    """A line with terminal colours; without them if it has a secret, whose name and value they may separate."""
    plain = uncoloured(line[0])
    return line[0] if _redacted(plain) == plain else plain


def redact_parts(parts: Iterable[str]) -> Iterator[str]:
    """Redact a long text in parts that consist of complete lines; each part is redacted as in the complete text."""
    left = 0
    for part in parts:
        shown, left = hide_keys(part, left)
        yield redact_lines(shown)


def hide_keys(text: str, left: int = 0) -> tuple[str, int]:
    """Hide private keys line by line. Returns the text, and how many characters of the following text still belong to a
    key that does not end in this one. `left`: that number for this text."""
    parts, at = list[str](), 0
    while True:
        if left:
            end = min(at + left, len(text))
            if found := _KEY_ENDS.search(text, at, end):
                end, left = found.start(), 0
            else:
                left -= end - at
            parts.append(re.sub(r"[^\n]+", HIDDEN, text[at:end]))
            at = end
        if left or not (begin := _KEY.search(text, at)):
            return "".join([*parts, text[at:]]), left
        parts.append(text[at : begin.end()])
        at, left = begin.end(), KEY_CHARACTERS


def _by_format(text: str, code: bool = False) -> str:
    """The text without the secrets that are recognized without a name."""
    text = _USERINFO.sub(lambda found: found[0] if code and "\\" in found[0] else f"{found['name']}{HIDDEN}@", text)
    text = _QUERY.sub(_in_query, text)
    return SHAPES.sub(lambda match: (match["name"] or "") + HIDDEN, text)


def _in_header(match: re.Match[str]) -> str:
    return match[0] if PLACEHOLDER.fullmatch(match["value"]) else match["name"] + HIDDEN


def _in_query(match: re.Match[str]) -> str:
    hide = is_secret(match["word"]) or _SIGNATURE.search(match["word"])
    return match["name"] + HIDDEN if hide and not _TEMPLATE.match(match["value"]) else match[0]


def _in_element(match: re.Match[str]) -> str:
    hide = is_secret(match["word"]) and _is_named(match, match)
    return f"<{match['word']}>{HIDDEN}" if hide else match[0]


def _in_prose(match: re.Match[str]) -> str:
    word, value = match["word"].replace(" ", "_"), match["value"]
    hide = is_secret(word) and not word.lower().endswith(("token", "tokens")) and not A_FILE.fullmatch(value)
    return match[0].removesuffix(value) + HIDDEN if hide else match[0]


def _hide_named(text: str, hides: Callable[[re.Match[str], re.Match[str]], bool]) -> str:
    """Hide the values of names with secrets for which `hides(name, value)` is true; quotes stay."""
    parts, at = list[str](), 0
    for name in _NAMED.finditer(text):
        if name.start() < at or not is_secret(name["word"]):
            continue
        group, single = _GROUP.match(text, name.end()), _VALUE.match(text, name.end())
        quoted = [*_QUOTED.finditer(text, *group.span())] if group else []
        for value in quoted or filter(None, [single]):
            if hides(name, value):
                start, end = value.span(value.lastgroup or 0)
                parts += [text[at:start], HIDDEN]
                at = end
    return "".join([*parts, text[at:]])


def _is_named(name: re.Match[str], value: re.Match[str]) -> bool:
    """Return whether a value in a text is a secret, as its name suggests."""
    word, by, content = name["word"].lower(), name["by"].strip(), value[value.lastgroup or 0]
    bare = value.lastgroup == "bare"
    if content.startswith(HIDDEN) or NO_SECRETS.fullmatch(content.rstrip(".:")) or not re.search(r"\w", content):
        return False
    if PLACEHOLDER.fullmatch(content) or is_path(word, content) or (bare and _SOURCE.fullmatch(content)):
        return False
    if content.rpartition(".")[2].strip("_").lower() == word.rpartition(".")[2].strip("_"):
        return False  # api_key=self._api_key
    if is_plain_value(word, content) or ("token" in word and NUMBER.fullmatch(content)):
        return False  # num_tokens=100
    if word in ("token", "tokens") and (by == ":" or value.string.startswith(_BRACKETS, name.end())):
        return bool(_RANDOM.fullmatch(content))  # unexpected token: x
    is_code = name["by"].startswith(" ") or "token" in word or content.startswith(("os.", "self."))
    if bare and is_code and "=" in by and _CODE.match(content):
        return False  # a line of code: token = tokens[0]
    if bare and by == ":" and is_short(word):  # a field; not `second pass: reading`, nor MLflow's sums.pass:at:4
        is_metric = "." in word and name["by"] == ":"
        return not is_metric and _begins_a_field(name) and not _is_prose(value)
    # HF_TOKEN: its Secret is missing
    return not (bare and by == ":" and _SUBJECT.search(name["word"]) and _is_word(content) and _is_prose(value))


def _begins_a_field(name: re.Match[str]) -> bool:
    before = name.string[max(0, name.start() - 100) : name.start()].rstrip(" \t-")
    return not before or before[-1] in "\n{[(,;"


def _is_prose(value: re.Match[str]) -> bool:
    """Return whether words follow, as in a sentence."""
    return bool(re.match(r"['’]?[a-z]*,?[^\S\n]+[\w(]", value.string[value.end() : value.end() + 20]))


def _is_word(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Z]?[a-z]+", text))


def redact_code(text: str, literals: bool = False) -> str:
    """Source code with its secrets of a recognizable format hidden. A name alone is no sign of a secret there, as in
    `token = tokens[0]`; with `literals`, string literals that are given to a secret's name are hidden too."""
    text = _by_format(hide_keys(text)[0], code=True)  # in code, user info with a backslash is a regular expression's
    return _hide_named(text, _is_literal) if literals else text


def _is_literal(name: re.Match[str], value: re.Match[str]) -> bool:
    """Return whether a value is a string literal, under a name that in code does not mean a token of a text."""
    return (
        value.lastgroup != "bare"
        and bool(name["by"].strip())
        and not _TOKEN_IN_CODE.search(name["word"])
        and _is_named(name, value)
    )


def redact_spec(value: Any) -> Any:
    """`redact` for values that are stored and read again: the source code of functions stays as it was, except for
    secrets of a recognizable format, and lists of variables' names stay."""
    return redact(value, code=redact_code)


def redact(value: Any, name: str = "", code: Callable[[str], str] | None = None) -> Any:
    """A JSON-like value with its secrets hidden. `name`: the field that holds it. `code`: the function that hides
    secrets in source files, a dict `source` of texts by file name; by default they are redacted like other text."""
    if isinstance(value, dict):
        if code and name == "source" and all(str(key).endswith(".py") for key in value):
            return {key: code(item) if isinstance(item, str) else item for key, item in value.items()}
        if name == "placement" and isinstance(value.get("setup"), str):
            digest = blake2b(value["setup"].encode(errors="surrogatepass"), digest_size=16).hexdigest()
            value = {key: item for key, item in value.items() if key != "setup"} | {SETUP_DIGEST: digest}
        names = {"secrets": value["secrets"]} if name in ("placement", "pod") and "secrets" in value else {}
        variable = value.get("name")  # {name: HF_TOKEN, value: …}
        variables = {"value": variable} if isinstance(variable, str) else {}
        return {key: redact(item, variables.get(key, str(key)), code) for key, item in value.items()} | names
    if isinstance(value, list | tuple):
        return [redact(item, name, code) for item in value]
    if not isinstance(value, str) or not value:
        return value
    hide = is_secret(name) and not is_plain_value(name, value) and not is_path(name, value)
    return HIDDEN if hide else redact_text(value)


def redact_command(words: list[str]) -> list[str]:
    """A command line with secrets hidden: `--token X`, `--token=X`, `TOKEN=X` and secrets in URLs."""
    shown: list[str] = []
    hide_next = False
    for word in words:
        option, equals, _ = word.partition("=")
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
        elif word.lstrip().startswith("{"):
            shown.append(_redact_json(word))
        elif equals and is_secret(option.lstrip("-")):
            shown.append(f"{option}={HIDDEN}")
        else:
            shown.append(redact_text(word))
        hide_next = word.startswith("-") and not equals and is_secret(word.lstrip("-"))
    return shown


def _redact_json(word: str) -> str:
    """An inline recipe; hidden if it can't be parsed."""
    try:
        return json.dumps(redact(json.loads(word)))
    except (ValueError, RecursionError):
        return HIDDEN

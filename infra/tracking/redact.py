"""Redact secrets from specs, command lines and messages, before they reach the spool, MLflow or a log.

Covered: fields, options and variables with a secret's name, user info and signatures in URLs, `Authorization` headers,
private keys, and well-known token formats; a placement's `setup` is replaced by its digest. Not covered: a secret in
free text without a recognizable format.
"""

import json
import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

HIDDEN = "[redacted]"
SETUP_DIGEST = "setup_digest"  # replaces a placement's setup

_SECRET = (
    r"token|secret|password|passwd|passphrase|pwd|credential|authorization"
    r"|(api|access|account|secret|private|ssh|signing|encryption|master|auth|license)[_-]?key"
)
_SECRET_NAME = re.compile(rf"(^|[_\-.])({_SECRET})s?$", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"[A-Z0-9_]+_(KEY|PASS|PAT|AUTH|DSN)")  # upper case only: `sort_key` is no secret
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# text tokens, not access tokens; numbers are never hidden, so `tokens: 1000` stays
_TEXT_TOKEN = re.compile(r"(eos|bos|pad|unk|sep|cls|mask|special|stop|image|end|start|additional_special)_tokens?$")
_TOKEN_IN_CODE = re.compile(r"(?<!api_)(?<!access_)(?<!auth_)(?<!hf_)tokens?$", re.IGNORECASE)
_USERINFO = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.\-]{0,30}://)(?!git@)[^/\s'\"]+@")
_QUERY = re.compile(
    r"(?P<name>[?&](?:[\w\-]{0,60}(?:token|secret|password|signature|credential)|sig|key|api_?key)=)[^&\s'\"]+",
    re.IGNORECASE,
)
_SHAPES = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w\-]{20,}|sk-[A-Za-z0-9_\-]{20,}"
    r"|dapi[0-9a-f]{32}|(AKIA|ASIA)[A-Z0-9]{16}|AIza[\w\-]{35}|xox[abprs]-[\w\-]{10,}|nvapi-[\w\-]{20,}"
    r"|[rs]k_(live|test)_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{36}|pypi-[\w\-]{50,}|SG\.[\w\-]{16,}\.[\w\-]{16,}"
    r"|(gsk|pplx|r8|tgp)_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|ya29\.[\w\-]{20,}"
    r"|eyJ[\w\-]{10,}\.[\w\-]{10,}\.[\w\-]+)"
)
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL)
# a literal value: `$NAME` and `$(command)` only refer to a secret
_VALUE = r"(?P<value>\"(?!\$)[^\"\n]+\"|'[^'\n]+'|(?![$\"'])[^\s\"'&;,|)}]+)"
_HEADER = re.compile(
    r"(?P<name>\bauthorization[\"']?\s?[:=]\s{0,3}[\"']?[A-Za-z]+[^\S\n]{1,3})(?P<value>(?!\$)[^\s\"']+)", re.IGNORECASE
)
_SCHEME = re.compile(r"(?P<name>\b(?:bearer|basic)\s+)(?P<value>(?!\$)[\w.~+/=\-]{8,})", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(?<![\w.\-])(?P<name>-{{0,2}}[\"']?(?P<word>[A-Za-z_][\w.\-]{{0,60}})[\"']?\s?=\s?){_VALUE}")
# `password: x` is a secret, `unexpected token: x` is not
_FIELD = re.compile(rf"(?<![\w.\-])(?P<name>[\"']?(?P<word>[A-Za-z_][\w.\-]{{0,60}})[\"']?:\s{{0,3}}){_VALUE}")
_OPTION = re.compile(rf"(?<!\S)(?P<name>--(?P<word>[A-Za-z][\w\-]{{0,60}})\s{{1,3}})(?!-){_VALUE}")
_USER = re.compile(r"(?<!\S)(?P<name>(?:-u|--user)[ =][\"']?(?!\d+:\d+\b)[^\s:\"'$]{1,60}:)(?P<value>(?!\$)[^\s\"']+)")

_NO_SECRETS = ("bearer", "basic", "none", "null", "true", "false")


def redact_text(text: str) -> str:
    """The text with its secrets hidden."""
    text = _PRIVATE_KEY.sub(rf"\1{HIDDEN}\2", text)
    text = _USERINFO.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _QUERY.sub(rf"\g<name>{HIDDEN}", text)
    for pattern in (_SCHEME, _HEADER, _USER):
        text = pattern.sub(rf"\g<name>{HIDDEN}", text)
    for pattern in (_ASSIGNED, _FIELD, _OPTION):
        text = pattern.sub(_hidden, text)
    return _SHAPES.sub(HIDDEN, text)


def _hidden(match: re.Match[str]) -> str:
    """`NAME=value` with the value hidden if the name is a secret's; quotes stay."""
    word, value = match["word"], match["value"].strip("\"'")
    of_text = "token" in word.lower() and value.replace(".", "").isdigit()  # num_tokens=100
    of_text |= match.re is _FIELD and word.lower() in ("token", "tokens")  # unexpected token: x
    a_file = word.lower().endswith("credentials") and value.startswith(("/", "~"))
    if of_text or a_file or not _is_secret(word) or value.startswith(HIDDEN) or value.lower() in _NO_SECRETS:
        return match[0]
    return match["name"] + match["value"].replace(value, HIDDEN)


def redact_code(text: str, literals: bool = False) -> str:
    """Source code with its secrets of a recognizable format hidden. Names alone tell nothing there, as in
    `token = tokens[0]`; with `literals`, string literals that are given to a secret's name are hidden too."""
    text = _PRIVATE_KEY.sub(rf"\1{HIDDEN}\2", text)
    text = _USERINFO.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _QUERY.sub(rf"\g<name>{HIDDEN}", text)
    for pattern in (_ASSIGNED, _FIELD) if literals else ():
        text = pattern.sub(lambda match: _hidden(match) if _is_literal(match) else match[0], text)
    return _SHAPES.sub(HIDDEN, text)


def _is_literal(match: re.Match[str]) -> bool:
    """A string literal, of a name that in code is not one for a part of a text."""
    return match["value"][0] in "\"'" and not _TOKEN_IN_CODE.search(match["word"])


def redact_spec(value: Any) -> Any:
    """`redact` for what is stored and read again: the source code of functions stays as it was, except for secrets of a
    recognizable format, and lists of variables' names stay."""
    return redact(value, code=redact_code)


def redact(value: Any, name: str = "", code: Callable[[str], str] | None = None) -> Any:
    """A JSON-like value with its secrets hidden. `name`: the field that holds it. `code`: what hides those of source
    files, a dict `source` of texts by file name; default: as in other text."""
    if isinstance(value, dict):
        if code and name == "source" and all(str(key).endswith(".py") for key in value):
            return {key: code(item) if isinstance(item, str) else item for key, item in value.items()}
        if name == "placement" and isinstance(value.get("setup"), str):
            digest = blake2b(value["setup"].encode(errors="surrogatepass"), digest_size=16).hexdigest()
            value = {key: item for key, item in value.items() if key != "setup"} | {SETUP_DIGEST: digest}
        names = {"secrets": value["secrets"]} if name in ("placement", "pod") and "secrets" in value else {}
        return {key: redact(item, str(key), code) for key, item in value.items()} | names
    if isinstance(value, list | tuple):
        return [redact(item, name, code) for item in value]
    if not isinstance(value, str) or not value:
        return value
    return HIDDEN if _is_secret(name) else redact_text(value)


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
        elif equals and _is_secret(option.lstrip("-")):
            shown.append(f"{option}={HIDDEN}")
        else:
            shown.append(redact_text(word))
        hide_next = word.startswith("-") and not equals and _is_secret(word.lstrip("-"))
    return shown


def _redact_json(word: str) -> str:
    """An inline recipe; hidden if it can't be parsed."""
    try:
        return json.dumps(redact(json.loads(word)))
    except (ValueError, RecursionError):
        return HIDDEN


def _is_secret(name: str) -> bool:
    name = name.lstrip("-")
    if _TEXT_TOKEN.search(name):
        return False
    return bool(_SECRET_VARIABLE.fullmatch(name) or _SECRET_NAME.search(_CAMEL_CASE.sub("_", name)))

"""Secrets never reach the spool, MLflow or a log: redaction of specs, command lines and messages.

Covered: fields and options whose name says that they are secret, user info and signatures in URLs,
and the well-known shapes of tokens. Not covered: a secret in free text that looks like nothing.
"""

import re
from typing import Any

HIDDEN = "[redacted]"

_SECRET_NAME = re.compile(
    r"(^|[_\-.])(token|secret|password|passwd|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential|authorization)s?$",
    re.IGNORECASE,
)
# tokens of text, not of access; only text is ever hidden, so `tokens: 1000` stays
_TEXT_TOKEN = re.compile(r"(eos|bos|pad|unk|sep|cls|mask|special|stop|image|end|start|additional_special)_tokens?$")
_USERINFO = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.\-]*://)[^/\s@'\"]+@")
_QUERY = re.compile(
    r"(?P<name>[?&](?:[\w\-]*(?:token|secret|password|signature|credential)|sig|key|api_?key)=)[^&\s'\"]+",
    re.IGNORECASE,
)
_SHAPES = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[A-Za-z0-9_\-]{20,}|dapi[0-9a-f]{32}"
    r"|(AKIA|ASIA)[A-Z0-9]{16}|eyJ[\w\-]{10,}\.[\w\-]{10,}\.[\w\-]+)"
)


def redact_text(text: str) -> str:
    """The text with the secrets in its URLs, and everything shaped like a token, hidden."""
    text = _USERINFO.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _QUERY.sub(rf"\g<name>{HIDDEN}", text)
    return _SHAPES.sub(HIDDEN, text)


def redact(value: Any, name: str = "") -> Any:
    """A JSON-like value of the same shape without secrets. `name` is the field it was found under."""
    if isinstance(value, dict):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, name) for item in value]
    if not isinstance(value, str) or not value:
        return value
    return HIDDEN if _is_secret(name) else redact_text(value)


def redact_command(words: list[str]) -> list[str]:
    """A command line without secrets: `--token X`, `--token=X`, `TOKEN=X` and secrets in URLs."""
    shown: list[str] = []
    hide_next = False
    for word in words:
        option, equals, _ = word.partition("=")
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
        elif equals and _is_secret(option.lstrip("-")):
            shown.append(f"{option}={HIDDEN}")
        else:
            shown.append(redact_text(word))
        hide_next = word.startswith("-") and not equals and _is_secret(word.lstrip("-"))
    return shown


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _TEXT_TOKEN.search(name)

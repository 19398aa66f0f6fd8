"""Convert names to MLflow's, and back: distinct names stay distinct, and Baton shows them as they were given.

    mlflow_name("sums.pass@4")          "sums.pass:at:4"
    original_name("sums.pass:at:4")     "sums.pass@4"

MLflow (3.17) accepts letters and digits of any script, _ - . : / and space, as a normalized path. Other characters are
written as `:at:`, `:comma:`, or their code point, `:2b:`. A name that is too long ends in its digest, in Baton too.
"""

import posixpath
import re

from blake3 import blake3

LONGEST = 200  # so that a prefix such as `output/` fits into MLflow's 250
_WORDS = {"@": "at", ",": "comma", "%": "percent"}
_CHARACTERS = {word: character for character, word in _WORDS.items()} | {"empty": ""}
_REFUSED = re.compile(r"[^\w\-./: ]")
_ESCAPE = re.compile(rf":({'|'.join(_CHARACTERS)}|[0-9a-f]{{2,5}}|10[0-9a-f]{{4}}):")


def mlflow_name(name: str) -> str:
    """The name in a form that MLflow accepts."""
    if not name:
        return ":empty:"
    if _REFUSED.search(name) or _ESCAPE.search(name) or not _is_normalized(name):
        escaped = "".join(_escape(one) if one == ":" or _REFUSED.match(one) else one for one in name)
        if not _is_normalized(escaped):
            escaped = escaped.replace("/", _escape("/"))
        name = escaped if _is_normalized(escaped) else _escape(name[0]) + escaped[1:]  # it begins with a dot
    if len(name) > LONGEST:
        digest = f".{blake3(name.encode()).hexdigest(length=8)}"
        name = name[: LONGEST - len(digest)] + digest
    return name


def original_name(name: str) -> str:
    """The name that `mlflow_name` was given."""
    return _ESCAPE.sub(lambda at: _CHARACTERS[at[1]] if at[1] in _CHARACTERS else chr(int(at[1], 16)), name)


def _escape(character: str) -> str:
    return f":{_WORDS.get(character) or f'{ord(character):02x}'}:"


def _is_normalized(name: str) -> bool:
    path = posixpath.normpath(name)
    return path == name and path != "." and not path.startswith(("..", "/"))

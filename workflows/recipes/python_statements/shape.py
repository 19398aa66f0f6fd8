"""The shape of a statement: what is left when every name and value is blanked.

`self.total = count` and `node.next = None` have one shape, `_ . _ = _`. A model that writes nothing but
`self.<some word> = False` never repeats itself, yet says one thing only; its shapes give it away.
"""

import io
import keyword
import tokenize
from collections import Counter
from collections.abc import Iterable

_VALUES = {"True", "False", "None"}


def shape(statement: str) -> str:
    """Keywords and punctuation as they are, everything else `_`. For any text; as far as it can be
    read as Python."""
    parts = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(statement).readline):
            if token.type == tokenize.OP or (keyword.iskeyword(token.string) and token.string not in _VALUES):
                parts.append(token.string)
            elif token.type in (tokenize.NAME, tokenize.NUMBER, tokenize.STRING):
                parts.append("_")
    except (tokenize.TokenError, SyntaxError):
        pass  # what came before the text stopped being Python is its shape
    return " ".join(parts)


def shares(statements: Iterable[str]) -> dict[str, float]:
    """How large a part of these statements has each shape."""
    counts = Counter(map(shape, statements))
    return {key: count / counts.total() for key, count in counts.items()}

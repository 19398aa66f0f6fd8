"""The part of a Python source text on which its results depend: the text without comments and blank lines."""

import io
import tokenize
from functools import cache

# tokens around an f-string, from Python 3.12 on; before, an f-string is one STRING
_F_STRING = getattr(tokenize, "FSTRING_START", None), getattr(tokenize, "FSTRING_END", None)


@cache  # a recipe's functions mostly share one file
def without_comments(text: str) -> str:
    """Return a source text without comments, blank lines, and spaces at the ends of lines. Its syntax tree is that of
    `text`, apart from line numbers. A text that is not Python is returned as it is."""
    lines = text.split("\n")
    in_string: set[int] = set()  # indices of the lines whose end is within a string
    starts: list[int] = []  # indices of the lines on which the f-strings around a token begin
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            (row, column), (end, _) = token.start, token.end
            if token.type == _F_STRING[0]:
                starts.append(row - 1)
            elif token.type == _F_STRING[1]:
                in_string |= {*range(starts.pop(), end - 1)}
            elif token.type == tokenize.STRING:
                in_string |= {*range(row - 1, end - 1)}
            elif token.type == tokenize.COMMENT and not starts:
                lines[row - 1] = lines[row - 1][:column]
    except (tokenize.TokenError, SyntaxError):
        return text
    ends = [line if index in in_string else line.rstrip() for index, line in enumerate(lines)]
    return "\n".join(line for index, line in enumerate(ends) if index in in_string or line) + "\n"

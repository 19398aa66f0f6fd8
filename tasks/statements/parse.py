"""Parsing text that a model wrote: quietly, and without falling for it. Nothing is ever executed."""

import ast
import warnings


def parse(text: str) -> ast.Module | None:
    """The syntax tree, or None for whatever Python's parser cannot take: wrong syntax, null bytes,
    lone surrogates, nesting deeper than its stack."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "\d" and the like: the text's own business
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

"""Rows of next statements, from the corpus's Python modules: `rows.py:rows` in a recipe's `data`.

    {"prompt": the function so far, "completion": its next statement, "source": the module,
     "module_names": names bound at the module's top level}

A prompt ends where adding one statement makes the function so far parseable. Excluded are statements below a `try` or a
`match` (a `try` without its handler never parses) or in a class inside a function, and those that are trivial (see
python_code.py; docstrings are), too long, or share a line with preceding code.

The choice of statements and the order of prompts depend on a hash of the seed and the text: the same documents and seed
give the same prompts, for any order of documents, and a smaller limit gives a prefix of the longer list.
"""

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from blake3 import blake3
from python_code import Function, is_trivial, module_names, parse
from statements import Prompt

MAX_STATEMENT_CHARS = 200
MAX_STATEMENT_LINES = 6

# a function may be cut inside these; not inside try, match or class
_OPEN_BLOCKS = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith),
    *(ast.FunctionDef, ast.AsyncFunctionDef),
)


def rows(
    documents: Iterable[dict[str, Any]], seed: int = 0, per_function: int = 2, max_prompt_chars: int = 800
) -> Iterator[dict[str, Any]]:
    """Yield one row per prompt."""
    for prompt in extract(documents, seed=seed, per_function=per_function, max_prompt_chars=max_prompt_chars):
        yield {
            "prompt": prompt.text,
            "completion": prompt.reference,
            "source": prompt.source,
            "module_names": sorted(prompt.module_names),
        }


def extract(
    documents: Iterable[dict[str, Any]],
    *,
    seed: int,
    limit: int | None = None,
    per_function: int = 1,
    max_prompt_chars: int = 800,
    max_statement_chars: int = MAX_STATEMENT_CHARS,
) -> list[Prompt]:
    """Extract up to `per_function` prompts from every function, `limit` in all. A text shared by several functions is
    used once. Documents that are not Python, or import `*`, are skipped."""

    def rank(prompt: Prompt) -> str:
        identity = blake3(f"{prompt.source}\0{prompt.text}".encode()).hexdigest()
        return blake3(f"{seed}\0{identity}".encode()).hexdigest()

    by_text: dict[str, Prompt] = {}
    for document in documents:
        tree = parse(document["text"])
        names = module_names(tree) if tree else frozenset()
        if tree is None or "*" in names:
            continue
        lines = document["text"].split("\n")
        for function in functions(tree):
            prompts = _cuts(document["source"], lines, function, names, max_prompt_chars, max_statement_chars)
            for prompt in sorted(prompts, key=rank)[:per_function]:
                by_text[prompt.text] = min(prompt, by_text.get(prompt.text, prompt), key=rank)
    return sorted(by_text.values(), key=rank)[:limit]


def functions(tree: ast.AST) -> Iterator[Function]:
    """Functions and methods, at any depth of classes and blocks but not inside another function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node
        else:
            yield from functions(node)


def _cuts(
    source: str, lines: list[str], function: Function, names: frozenset[str], max_prompt_chars: int, max_chars: int
) -> Iterator[Prompt]:
    """Yield every prompt of one function that is within the limits."""
    dedented = _dedented(lines, function)
    if dedented is None:
        return
    for statement in _positions(function.body):
        first, last = _extent(statement)
        before = lines[first - 1].encode()[: statement.col_offset].decode()
        reference = "\n".join(dedented[first - function.lineno : last - function.lineno + 1])
        indent = dedented[first - function.lineno][: statement.col_offset - function.col_offset]
        after = lines[last - 1].encode()[statement.end_col_offset :].decode()
        reference = reference[len(indent) : len(reference) - len(after)]
        text = "".join(line + "\n" for line in dedented[: first - function.lineno]) + indent
        if before.strip() or reference.startswith("elif") or is_trivial(statement):
            continue
        if len(text) > max_prompt_chars or len(reference) > max_chars or last - first >= MAX_STATEMENT_LINES:
            continue
        yield Prompt(text, names, reference, source)


def _dedented(lines: list[str], function: Function) -> list[str] | None:
    """The function's lines from `def` on, dedented; None if a line is indented less (e.g. inside a string) or does not
    end in a plain newline."""
    dedented = []
    margin = lines[function.lineno - 1][: function.col_offset]
    for line in lines[function.lineno - 1 : function.end_lineno]:
        if "\r" in line or "\f" in line or (line.strip() and not line.startswith(margin)):
            return None
        dedented.append(line[len(margin) :] if line.strip() else "")
    return dedented


def _positions(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements before which a function can be cut."""
    for statement in statements:
        yield statement
        if isinstance(statement, _OPEN_BLOCKS):
            yield from _positions(statement.body)
            yield from _positions(getattr(statement, "orelse", []))


def _extent(statement: ast.stmt) -> tuple[int, int]:
    """The statement's first line, including decorators, and its last."""
    decorators = getattr(statement, "decorator_list", [])
    return min(node.lineno for node in (statement, *decorators)), statement.end_lineno or statement.lineno

"""Check whether a completion is a good next statement, by parsing alone: the model's text is never executed.

**The statement** of a completion is its shortest prefix of whole lines with which the function so far parses and gains
a statement in the block where the prompt ends:

- blank lines and comments alone don't end it; a following `else:` or `elif` is not a statement;
- a compound statement ends with its first complete branch;
- `a(); b()` on one line is one statement, and gets the worse result of the two;
- text after the statement is ignored;
- a completion without such a prefix does not parse. Its statement is its first non-blank line, and every other check is
  False.

**The checks**, each reported separately:

- `parses`: there is such a statement.
- `not_trivial`: it does not begin with a comment, and is not trivial (see python_code.py).
- `defined`: pyflakes finds no undefined name in its lines. The names of the prompt's module count as defined, and so do
  names that the statement assigns before use.
- `uses_context`: it reads at least one argument or local variable of the function so far.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pyflakes.checker import Checker
from pyflakes.messages import UndefinedLocal, UndefinedName
from python_code import Function, context_names, is_trivial, loaded_names, parse

MAX_LINES = 64  # lines and characters of a completion that are parsed;
MAX_CHARS = 4_000  # a longer statement does not parse


@dataclass(frozen=True)
class Prompt:
    """A function of a module, dedented and cut before one of its statements: it ends in a newline and the indentation
    of the next statement."""

    text: str
    module_names: frozenset[str]  # names bound at the module's top level
    reference: str = ""  # the original statement without its indentation, such that `text + reference` parses
    source: str = ""  # the module

    @property
    def indent(self) -> str:
        """The whitespace that `text` ends in."""
        return self.text[self.text.rfind("\n") + 1 :]

    @property
    def line(self) -> int:
        """The 1-based line of `text + completion` in which the completion begins."""
        return self.text.count("\n") + 1


@dataclass(frozen=True)
class Verdict:
    """The results for one completion."""

    statement: str
    parses: bool = False
    not_trivial: bool = False
    defined: bool = False
    uses_context: bool = False

    @property
    def all_checks(self) -> bool:
        return all(self.four)

    @property
    def four(self) -> tuple[bool, bool, bool, bool]:
        return self.parses, self.not_trivial, self.defined, self.uses_context


def check(prompt: Prompt, completion: str) -> Verdict:
    """Check a model's completion of `prompt.text` (without the end-of-text token). Accepts any text without raising;
    takes about 0.5 ms."""
    completion = completion.replace("\r\n", "\n").replace("\r", "\n")
    statement = find_statement(prompt.indent, completion)
    tree = parse(prompt.text + statement) if statement is not None else None
    if statement is None or tree is None:
        return Verdict(first_line(completion))
    try:
        function, new = _function_and_new(tree, prompt.line)
        return Verdict(
            statement=statement.strip(),
            parses=True,
            not_trivial=not statement.lstrip().startswith("#") and not any(map(is_trivial, new)),
            defined=not _undefined(tree, prompt.text + statement, prompt),
            uses_context=_uses(new, context_names(function, prompt.line)),
        )
    except RecursionError:  # it parsed, but is nested too deeply to analyze
        return Verdict(statement.strip(), parses=True)


def find_statement(indent: str, completion: str) -> str | None:
    """The completion's shortest prefix of whole lines that is a statement in a block indented by `indent`; None if
    there is none."""
    lines = completion[:MAX_CHARS].split("\n")[:MAX_LINES]
    text = ""
    for number, line in enumerate(lines):
        text += line if number == 0 else "\n" + line
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        tree = parse("if x:\n" + indent + text)
        match tree:
            # the block is still the only statement: nothing was closed or continued
            case ast.Module(body=[ast.If(body=[ast.stmt(col_offset=column), *_], orelse=[])]):
                return text if column == len(indent) else None
    return None


def first_line(completion: str) -> str:
    return next((line.strip() for line in completion[:MAX_CHARS].split("\n") if line.strip()), "")


def _function_and_new(tree: ast.Module, line: int) -> tuple[Function, list[ast.stmt]]:
    """The prompt's function, and the statements that begin at `line` or later in a block of the prompt."""
    (function,) = tree.body
    assert isinstance(function, Function), "a prompt's text is one function"
    new: list[ast.stmt] = []
    pending: list[ast.AST] = [function]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.stmt) and node.lineno >= line:
                new.append(node)
            elif isinstance(node, ast.stmt) and (node.end_lineno or 0) >= line:
                pending.append(node)
    return function, new


class _Checker(Checker):
    """pyflakes' checker that binds only the known names that occur. Otherwise it would bind its 160 builtins and all
    names of a large module each time, at half the speed."""

    def __init__(self, tree: ast.Module, text: str, known: frozenset[str]) -> None:
        self._occurring = {*re.findall(r"\w+", text)}
        super().__init__(tree, builtins=known)

    @property
    def builtIns(self) -> set[str]:
        return self._known

    @builtIns.setter
    def builtIns(self, names: set[str]) -> None:
        self._known = names & self._occurring


def _undefined(tree: ast.Module, text: str, prompt: Prompt) -> bool:
    """Whether pyflakes reports an undefined name in the new lines."""
    messages = _Checker(tree, text, prompt.module_names).messages
    return any(isinstance(one, (UndefinedName, UndefinedLocal)) and one.lineno >= prompt.line for one in messages)


def _uses(statements: Iterable[ast.stmt], context: set[str]) -> bool:
    return any(loaded_names(statement) & context for statement in statements)

"""The parts of a function's files on which its results depend: those that it uses, as syntax trees."""

import ast
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.user_code.functions import Function
from baton.tasks.user_code.syntax import first_difference, form
from baton.tasks.user_code.used import used

STDLIB = Path(sysconfig.get_paths()["stdlib"])
PROGRAM = '''\
"""Rewards."""
import re
from dataclasses import dataclass
from words import number, unit

NUMBER = re.compile("[0-9]+")
LIMIT: int = 3


@dataclass
class Found:
    value: str = "none"


def first(text: str) -> str:
    found = NUMBER.search(text)
    return found[0] if found else Found().value


def right(completions, answer, **kwargs):
    """Compare."""
    return [float(first(one) == each + unit) for one, each in zip(completions, answer)]


def short(completions, **kwargs):
    return [float(len(one) < LIMIT) for one in completions]


if __name__ == "__main__":
    print(right(["3 apples"], ["3"]))
'''
WORDS = "unit = ' apples'\nnumber = 3\n"


def identity(program: str = PROGRAM, words: str = WORDS, name: str = "sums.py", attribute: str = "right") -> Any:
    return Function(name=f"{name}:{attribute}", source={name: program, "words.py": words}).identity()


def lines(program: str, attribute: str = "right", **files: str) -> set[str]:
    """The first lines of the statements that a function of main.py uses, in files that are given by their modules."""
    sources = {"main.py": program} | {f"{name.replace('__', '/')}.py": text for name, text in files.items()}
    return {ast.unparse(each.node).partition("\n")[0] for each in used(sources, "main.py", attribute).statements}


@pytest.mark.parametrize(
    "change",
    [
        ('"[0-9]+"', "(\n    '[0-9]+'  # digits\n)"),
        ("float(first(one) == each + unit)", "float((first(one)) == (each + unit))"),
        ("completions, answer, **kwargs", "completions,\n    answer,\n    **kwargs,\n"),
        ('"""Rewards."""', '"""Rewards of sums."""'),
        ("LIMIT: int = 3", "LIMIT = 4"),
        ("len(one) < LIMIT", "len(one) <= LIMIT"),
        ("\ndef short(", "\ndef long(completions):\n    return exec('1')\n\n\ndef short("),
        ('["3 apples"]', '["4 apples"]'),
        ("import number, unit", "import unit"),
    ],
)
def test_formatting_and_parts_that_are_not_used_change_no_key(change: tuple[str, str]) -> None:
    assert change[0] in PROGRAM
    assert identity(PROGRAM.replace(*change)) == identity()


def test_a_constant_of_an_imported_file_that_is_not_used_changes_no_key() -> None:
    assert identity(words="unit = ' apples'\nnumber = 4\n") == identity()


def test_the_name_of_the_file_changes_no_key_unless_it_can_be_read() -> None:
    assert identity(name="checks.py") == identity()
    named = PROGRAM.replace('"none"', "__name__")
    assert identity(named, name="checks.py") != identity(named)


@pytest.mark.parametrize(
    "change",
    [
        ('"[0-9]+"', '"[0-9]*"'),
        ('"none"', '"nothing"'),
        ("found[0]", "found[1]"),
        ('"""Compare."""', '"""Compares."""'),  # those of tools are read by TRL
        ("LIMIT: int = 3\n", "LIMIT: int = 3\nprint(LIMIT)\n"),
        ("from words import number, unit", "from words import number as unit"),
        ("import re\n", "import re\nimport random\n"),
        ("def short(", "@print\ndef short("),
        ("def short(completions, ", "def short(completions=print(), "),
        ("def short(", "class Other(Found):\n    pass\n\n\ndef short("),
        ("class Found:", "class Found(Base):"),
        ("def short(", "def float(value):\n    return 1\n\n\ndef short("),
    ],
)
def test_a_changed_meaning_changes_the_key(change: tuple[str, str]) -> None:
    assert change[0] in PROGRAM
    assert identity(PROGRAM.replace(*change)) != identity()


def test_a_text_of_the_same_tree_after_the_split_has_the_same_identity() -> None:
    function = Function(name="sums.py:right", source={"sums.py": PROGRAM, "words.py": WORDS})
    spec, options = function.split_options()
    assert spec.identity() == function.identity()
    assert Function.model_validate_json(spec.model_dump_json()).identity() == function.identity()
    assert spec.with_options(options) == function


# A name that occurs is followed, whatever it refers to


@pytest.mark.parametrize(
    "text",
    [
        "def right():\n    return helper()",
        "def right(x):\n    return x.helper",
        "def right(x):\n    return getattr(x, 'helper')",
        "def right(x: 'list[helper]'):\n    ...",
        "def right():\n    import other\n    return other.f()",
        "from other import *\ndef right():\n    return f()",
        "right = lambda: helper()",
        "alias = helper\ndef right():\n    return alias()",
        "def right():\n    global helper",
        "class right:\n    def score(self):\n        return helper",
        "if True:\n    def right():\n        return 1\nelse:\n    helper()",
    ],
)
def test_what_is_used_is_found(text: str) -> None:
    assert "def helper():" in lines(f"def helper():\n    return 1\n{text}", other="def f():\n    return helper")


# What cannot be followed counts as everything


@pytest.mark.parametrize(
    "text",
    [
        "def right(n):\n    return globals()[n]",
        "def right(n):\n    return eval(n)",
        "def right(n):\n    exec(n)",
        "import main as me\ndef right(n):\n    return getattr(me, n)",
        "import other\ndef right(n):\n    return getattr(other, n)",
        "from package import part\ndef right(n):\n    return getattr(part, n)",
        "import package.part\ndef right(n):\n    return getattr(package.part, n)",
        "import other as o\ndef right(n):\n    return [f(o) for f in n]",
        "import sys\ndef right(n):\n    return getattr(sys.modules[__name__], n)",
        "from importlib import import_module as i\ndef right(n):\n    return i(n)",
        "def right(n):\n    return right.__globals__[n]",
        "def right(n):\n    return getattr(right, '__globals__')[n]",
        "import pickle\ndef right(n):\n    return pickle.loads(n)",
        "import builtins as b\ndef right(n):\n    return b.eval(n)",
    ],
)
def test_whatever_cannot_be_followed_counts_as_everything(text: str) -> None:
    files = {"other": "", "package____init__": "", "package__part": "x = 1"}
    assert "def helper():" in lines(f"def helper():\n    return 1\n{text}", **files)


def test_a_text_that_is_read_counts_as_it_is() -> None:
    reads = PROGRAM.replace('"none"', "open(__file__).read()")
    assert identity(reads + "# a comment\n") != identity(reads)


# What runs when a file is imported is used


@pytest.mark.parametrize(
    "text",
    [
        "helper()", "x = helper()", "x = y = [helper()]", "for x in y: pass", "x: int = helper()", "x.y = 1",
        "x[0] = 1",
        "class A(B): pass", "class A(metaclass=B): pass", "class A:\n    x = helper()", "class A:\n    helper()",
        "@register\ndef x(): pass", "@register\nclass x: pass", "def x(y=helper()): pass", "def x(y: helper()): pass",
        "x = list(y)", "[*x] = y", "x, y = z", "x = [*y]", "x = {**y}", "x = [y for y in z]", "x = y | z", "x = y[0]",
        "x = y.z", "x += 1", "del x", "import x", "try:\n    x = 1\nexcept ValueError:\n    pass", "with x: pass",
        "def __getattr__(name): return 1", "__all__ = ['x']", "x = lambda y=helper(): y", "x = set(y)", "x = f'{y}'",
        "def list(x): return 1\nx = list([1])", "from x import list\nx = list([1])", "x = await_me if y else z",
    ],
)  # fmt: skip
def test_what_runs_when_the_file_is_imported_is_used(text: str) -> None:
    last = ast.unparse(ast.parse(text).body[-1]).partition("\n")[0]
    assert last in lines(f"def right():\n    return 0\n{text}")


@pytest.mark.parametrize(
    "text",
    [
        "x = 1", "x: int = 1", "x = 'a', {'b': [1, -2]}, {3}", "x = frozenset({'a'})", "x = 2 * 3", "x = y = None",
        "def x(y: int = 1, *, z: list[str] | None = None) -> float: return helper()", "async def x(): pass",
        "class x:\n    '''Text.'''\n    y: int = 1\n    @property\n    def z(self): return helper()",
        "class x(ValueError): pass", "x = lambda: helper()", "x = dict[str, int]",
        "from functools import cache\n@cache\ndef x(): return helper()",
        "import re\nx = re.compile('a')",
    ],
)  # fmt: skip
def test_a_plain_definition_is_not(text: str) -> None:
    last = ast.unparse(ast.parse(text).body[-1]).partition("\n")[0]
    assert last not in lines(f"def right():\n    return 0\n{text}")


# The form of a tree


@pytest.mark.parametrize("folder", ["asyncio", "json"])
def test_the_form_of_a_text_is_that_of_its_formatted_one(folder: str) -> None:
    for path in STDLIB.joinpath(folder).glob("*.py"):
        tree = ast.parse(path.read_text())
        assert form(tree) == form(ast.parse(ast.unparse(tree)))


@given(st.sampled_from(["1", "1.0", "'1'", "b'1'", "True", "None", "...", "1j", "x", "-1", "(1,)", "[1]", "not x"]))
def test_two_values_have_one_form_only_if_they_are_the_same(value: str) -> None:
    for other in ("1", "1.0", "'1'", "b'1'", "True", "None", "...", "1j", "x", "-1", "(1,)", "[1]", "not x"):
        assert (form(ast.parse(value)) == form(ast.parse(other))) is (value == other)


def test_the_line_of_a_difference_is_that_of_the_innermost_statement() -> None:
    old, new = (ast.parse(f"def f(x):\n    if x:\n        y = 1\n        z = {value}\n") for value in (1, 2))
    assert first_difference(old, new) == 4
    assert first_difference(None, new.body[0]) == 1

"""The text of a function's files without the parts that no result depends on."""

import ast
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.user_code.meaning import without_comments

STDLIB = Path(sysconfig.get_paths()["stdlib"])
PROGRAM = '''\
def right(completions, answer):
    """Compare.

    # not a comment
    """
    scores = [
        float(one == "# 1") + 1
        for one in completions
    ]
    return scores
'''


def test_comments_and_blank_lines_are_left_out() -> None:
    text = "#!/usr/bin/env python\nx = 1  # one\n\n\n# two\nif x:  \n\n    y = '#'  # three\n"
    assert without_comments(text) == "x = 1\nif x:\n    y = '#'\n"


def test_the_text_of_strings_stays() -> None:
    text = 'x = """a  \n\n# b\n"""\ny = f"""\n\n# {x}  \n"""  # c\n'
    assert without_comments(text) == text.removesuffix("  # c\n") + "\n"


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["", "   ", "# why", "\t# why not"])), max_size=8))
def test_wherever_comments_are_inserted_the_meaning_is_the_same(inserted: list[tuple[int, str]]) -> None:
    lines = PROGRAM.splitlines()
    docstring = range(2, 5)  # indices at which a line would be in the string
    for index, line in sorted(inserted, reverse=True):
        if index not in docstring and index <= len(lines):
            lines.insert(index, line)
    assert without_comments("\n".join(lines) + "\n") == without_comments(PROGRAM)


@pytest.mark.parametrize("change", [("== ", "!= "), ("# 1", "# 2"), ("Compare", "Compares"), ("+ 1", "+ 1.0")])
def test_a_changed_meaning_is_another_text(change: tuple[str, str]) -> None:
    assert without_comments(PROGRAM.replace(*change)) != without_comments(PROGRAM)


@pytest.mark.parametrize("folder", ["asyncio", "email", "json", "logging", "unittest"])
def test_the_standard_library_keeps_its_syntax_tree(folder: str) -> None:
    for path in STDLIB.joinpath(folder).glob("*.py"):
        text = path.read_text()
        reduced = without_comments(text)
        assert ast.dump(ast.parse(reduced)) == ast.dump(ast.parse(text))
        assert without_comments(reduced) == reduced


def test_a_text_that_is_not_python_stays() -> None:
    text = 'x = """never closed  # x\n'
    assert without_comments(text) == text

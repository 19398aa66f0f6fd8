"""Properties that hold for every text, and for all of the standard library."""

import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import extract
from statements import check

from tests.recipes.python_statements.examples import AREA, module

PIECES = st.one_of(
    st.sampled_from(["return ", "if ", "else", "def f", "lambda ", "for ", " in ", "class ", "try", "width", "é", "1"]),
    st.sampled_from(["\n", "    ", "\t", "\r", "\f", "\0", "\\", "#", "'", '"""', "f'{", "}"]),
    st.sampled_from(["(", ")", "[", "]", ":", ";", "=", ",", "@", "*"]),
)


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_gets_a_verdict(completion: str) -> None:
    check(AREA, completion)


@given(st.lists(PIECES, max_size=30).map("".join))
@settings(max_examples=1000, deadline=None)
def test_near_python_gets_a_verdict_and_later_checks_need_parsing(completion: str) -> None:
    verdict = check(AREA, completion)
    assert verdict.parses or not any(verdict.four)


@given(st.lists(PIECES, max_size=30).map("".join))
@settings(max_examples=300, deadline=None)
def test_what_follows_the_statement_does_not_count(after: str) -> None:
    verdict = check(AREA, "return width\n" + after)
    assert verdict.all_checks
    assert verdict.statement == "return width"


@pytest.fixture(scope="module")
def stdlib() -> list[dict[str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    return [module(path.read_text(), path.name) for path in sorted(root.glob("*.py"))[::3]]


def test_real_statements_of_the_standard_library_parse(stdlib: list[dict[str, str]]) -> None:
    prompts = extract(stdlib, seed=0, limit=1000)
    verdicts = [check(prompt, prompt.reference) for prompt in prompts]
    assert len(prompts) == 1000
    assert [each for each in verdicts if not each.parses] == []
    assert sum(each.not_trivial for each in verdicts) > 990
    assert sum(each.defined for each in verdicts) > 980
    assert sum(each.all_checks for each in verdicts) > 800


def test_the_statement_of_a_reference_begins_the_reference(stdlib: list[dict[str, str]]) -> None:
    for prompt in extract(stdlib, seed=1, limit=300):
        assert prompt.reference.startswith(check(prompt, prompt.reference + "\n" + prompt.indent + "x = 1").statement)

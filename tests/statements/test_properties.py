"""What holds for every text, and for all of the standard library."""

import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.data.documents import Document, document
from tasks.statements.check import check
from tasks.statements.extract import extract
from tasks.statements.summary import summarise
from tests.statements.examples import AREA

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
    assert verdict.parses or not any(verdict.checks.values())


@given(st.lists(PIECES, max_size=30).map("".join))
@settings(max_examples=300, deadline=None)
def test_what_follows_the_statement_does_not_count(after: str) -> None:
    verdict = check(AREA, "return width\n" + after)
    assert verdict.all_checks
    assert verdict.statement == "return width"


@pytest.fixture(scope="module")
def stdlib() -> list[Document]:
    root = Path(sysconfig.get_paths()["stdlib"])
    return [document(path.name, path.read_text()) for path in sorted(root.glob("*.py"))[::3]]


def test_real_statements_of_the_standard_library_parse(stdlib: list[Document]) -> None:
    prompts = extract(stdlib, seed=0, limit=1000)
    verdicts = [check(prompt, prompt.reference) for prompt in prompts]
    assert len(prompts) == 1000
    assert [each for each in verdicts if not each.parses] == []
    ceiling = summarise(verdicts)
    assert ceiling.not_trivial > 0.99
    assert ceiling.defined > 0.98
    assert ceiling.all_checks > 0.8


def test_the_statement_of_a_reference_begins_the_reference(stdlib: list[Document]) -> None:
    for prompt in extract(stdlib, seed=1, limit=300):
        assert prompt.reference.startswith(check(prompt, prompt.reference + "\n" + prompt.indent + "x = 1").statement)

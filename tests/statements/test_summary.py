"""Rates over many verdicts."""

from tasks.statements.check import Verdict
from tasks.statements.summary import distinct, summarise


def test_rates_are_shares_of_all_completions() -> None:
    good = Verdict("return x", parses=True, not_trivial=True, defined=True, uses_context=True)
    trivial = Verdict("pass", parses=True, defined=True)
    broken = Verdict("return (")
    found = summarise([good, good, trivial, broken])
    assert (found.count, found.parses, found.not_trivial, found.defined) == (4, 0.75, 0.5, 0.75)
    assert (found.uses_context, found.all_checks, found.distinct) == (0.5, 0.5, 0.75)


def test_statements_that_differ_in_white_space_alone_are_the_same() -> None:
    assert distinct(["x = 1", "x  =\n 1", "x=1", "y = 1"]) == 0.75

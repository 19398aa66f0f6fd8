"""Many verdicts, said in seven numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.statements.check import Verdict


@dataclass(frozen=True)
class Summary:
    """Shares of all completions, 0 to 1. `distinct` is how many of the statements differ from each
    other, white space aside, whether they pass or not."""

    count: int
    parses: float
    not_trivial: float
    defined: float
    uses_context: float
    all_checks: float
    distinct: float


def summarise(verdicts: Sequence[Verdict]) -> Summary:
    """The rates of at least one verdict."""

    def rate(name: str) -> float:
        return sum(verdict.checks[name] for verdict in verdicts) / len(verdicts)

    return Summary(
        count=len(verdicts),
        parses=rate("parses"),
        not_trivial=rate("not_trivial"),
        defined=rate("defined"),
        uses_context=rate("uses_context"),
        all_checks=rate("all_checks"),
        distinct=distinct([verdict.statement for verdict in verdicts]),
    )


def distinct(statements: Sequence[str]) -> float:
    """The share of different statements, white space aside; 0 to 1."""
    return len({" ".join(statement.split()) for statement in statements}) / len(statements)

"""The list of executions: search, filters, order."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy.engine import Connection

from baton.infra.lineage.graph import Graph
from baton.infra.lineage.search import matches
from baton.infra.lineage.summaries import Row, execution_rows

A_PAGE = 50  # executions
LONGEST_QUERY = 400  # characters of a search
MOST_WORDS = 8
# name -> the part of a row to sort by
ORDERS = {
    "recipe": lambda row: row["name"].lower(),
    "user": lambda row: row["user"].lower() or None,
    "state": lambda row: row["status"],
    "started": lambda row: row["started"],
    "duration": lambda row: row["duration_s"],
    "stages": lambda row: row["stages_ended"],
    "cost": lambda row: row["cost_usd"],
    "best": lambda row: row["best"] and row["best"]["value"],
}


class QueryRefused(ValueError):
    """A query has a value that is not allowed."""


@dataclass(frozen=True)
class Filters:
    """The selection and the order of executions, from a page's query."""

    q: str = ""
    state: str = ""
    recipe: str = ""
    since: str = ""  # YYYY-MM-DD, UTC
    until: str = ""
    sort: str = "started"
    order: str = "desc"

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Filters":
        """Read a page's query. Raises QueryRefused."""
        filters = cls(**{name: query[name].strip() for name in cls.__dataclass_fields__ if query.get(name)})
        words_of(filters.q)
        if filters.sort not in ORDERS or filters.order not in ("asc", "desc"):
            raise QueryRefused(
                f"sort={filters.sort[:80]}, order={filters.order[:80]}: sort by {', '.join(ORDERS)}; asc or desc"
            )
        filters.period()
        return filters

    def period(self) -> tuple[float, float]:
        """The first and the last moment of `since` to `until`. Raises QueryRefused."""
        begin = _time(self.since, "since") if self.since else 0.0
        return begin, _time(self.until, "until", days=1) if self.until else float("inf")


def words_of(q: str) -> list[str]:
    """The words of a search. Raises QueryRefused."""
    words = q.split()
    if len(q) > LONGEST_QUERY or len(words) > MOST_WORDS:
        raise QueryRefused(
            f"q has {len(q):,} characters in {len(words):,} words; a search has at most {LONGEST_QUERY} characters in "
            f"{MOST_WORDS} words"
        )
    return words


def _time(text: str, name: str, days: int = 0) -> float:
    try:
        day = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
        return (day + timedelta(days=days)).timestamp()
    except (ValueError, OverflowError):
        raise QueryRefused(f"{name}={text[:80]}: not a date such as 2026-01-31") from None


def executions_page(graph: Graph, connection: Connection, filters: Filters, page: int) -> dict[str, Any]:
    """One page of the executions that match."""
    begin, end = filters.period()
    executions = [execution for execution in graph.executions.values() if begin <= execution.started < end]
    executions = [execution for execution in executions if filters.recipe in ("", execution.name)]
    for word in dict.fromkeys(filters.q.split()):
        ids = matches(graph, connection, word).executions(graph)
        executions = [execution for execution in executions if execution.id in ids]
    by_state = filters.state.upper()
    if filters.sort == "started" and by_state in ("", "FINISHED", "FAILED", "KILLED"):  # rows of one page are enough
        executions = [execution for execution in executions if by_state in ("", execution.status)]
        executions.sort(key=lambda execution: (execution.started, execution.id), reverse=filters.order == "desc")
        pages, page = _pages(len(executions), page)
        rows = execution_rows(graph, connection, executions[(page - 1) * A_PAGE : page * A_PAGE])
        matching = len(executions)
    else:
        rows = [row for row in execution_rows(graph, connection, executions) if by_state in ("", row["status"])]
        rows = _sorted(rows, filters)
        pages, page = _pages(len(rows), page)
        rows, matching = rows[(page - 1) * A_PAGE : page * A_PAGE], len(rows)
    return {"executions": rows, "matching": matching, "page": page, "pages": pages}


def _pages(count: int, page: int) -> tuple[int, int]:
    pages = max(1, -(-count // A_PAGE))
    return pages, min(max(1, page), pages)


def _sorted(rows: list[Row], filters: Filters) -> list[Row]:
    """Sort the rows; those without a value come last."""
    key = ORDERS[filters.sort]
    rows.sort(key=lambda row: -row["started"])
    known = [row for row in rows if key(row) is not None]
    known.sort(key=key, reverse=filters.order == "desc")
    return known + [row for row in rows if key(row) is None]

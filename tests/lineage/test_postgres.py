"""The pages on PostgreSQL, with a read-only user: `make test-ui`."""

import pytest
from sqlalchemy import create_engine, insert, text
from sqlalchemy.exc import SQLAlchemyError
from starlette.testclient import TestClient

from baton.infra.drawing.graph import Artifact
from baton.infra.lineage.api import Lineage
from baton.infra.lineage.app import alone
from baton.infra.lineage.database import RUNS, open_database
from tests.lineage.many import Made, fill
from tests.lineage.postgres import Postgres

pytestmark = pytest.mark.slow

NOT_BIG = 40  # a small number of executions


@pytest.fixture(scope="module")
def filled(postgres: Postgres) -> tuple[str, Made]:
    """The address of a store for a user with only the SELECT privilege, and its content."""
    made = fill(postgres.database("lineage"), NOT_BIG)
    with create_engine(postgres.uri("lineage"), isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("CREATE USER reader"))
        connection.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"))
    return postgres.uri("lineage", "reader"), made


def test_every_page_is_served(filled: tuple[str, Made]) -> None:
    uri, made = filled
    page = TestClient(alone(uri))
    first = page.get(f"/lineage/executions/{made.executions[0]}.json").json()
    made_of = {run["title"]: run for run in first["stages"]}
    grpo, corpus = made_of["grpo"]["output"], made_of["corpus"]["output"]
    for address in (
        "/executions", "/executions?q=recipe-3&state=FINISHED", "/executions?q=seed=3", f"/executions/{made.large}",
        f"/artifacts/{grpo}?to={corpus}", f"/artifacts/{corpus}", f"/runs/{made_of['pretrain']['id']}",
        f"/compare?a={grpo}&b={made_of['sft']['output']}", "/models",
    ):  # fmt: skip
        assert page.get(f"/lineage{address}").status_code == 200, address
    assert len(page.get("/lineage/executions.json?q=seed=3").json()["executions"]) == 1


def test_the_history_is_that_of_sqlite(filled: tuple[str, Made]) -> None:
    uri, made = filled
    lineage = Lineage(uri)
    graph = lineage.graph.refresh()
    (published,) = [run.output for run in graph.stages(made.executions[4]) if run.title == "publish"]
    kinds = [node.kind for node in lineage.ancestors(str(published)) if isinstance(node, Artifact)]
    assert sorted(str(kind) for kind in kinds) == [
        "corpus", "hf_model", "hf_model", "hf_model", "megatron_checkpoint", "tokenized_corpus", "tokenizer",
    ]  # fmt: skip


def test_the_pages_never_write_even_as_a_user_who_may(postgres: Postgres, filled: tuple[str, Made]) -> None:
    with (
        open_database(postgres.uri("lineage")).connect() as connection,
        pytest.raises(SQLAlchemyError, match="read-only"),
    ):
        connection.execute(insert(RUNS).values(run_uuid="x"))

"""MLflow's tables, as far as the pages rely on them, opened read-only."""

from pathlib import Path

import pytest
from sqlalchemy import insert, inspect
from sqlalchemy.exc import SQLAlchemyError

from baton.infra.lineage.database import RUNS, TABLES, LineageUnavailable, open_database
from tests.lineage.recorded import Stored


def test_mlflow_has_the_tables_and_columns_that_the_pages_use(store: Stored) -> None:
    found = inspect(open_database())
    for table in TABLES:
        columns = {column["name"] for column in found.get_columns(table.name)}
        assert {column.name for column in table.columns} <= columns, table.name


def test_the_lookups_by_run_have_an_index(store: Stored) -> None:
    """Without an index, a page of 50 executions would read the entire table."""
    found = inspect(open_database())
    for table in ("tags", "params", "latest_metrics", "metrics"):
        assert ["run_uuid"] in [index["column_names"] for index in found.get_indexes(table)], table


def test_nothing_can_be_written(store: Stored) -> None:
    with open_database().connect() as connection, pytest.raises(SQLAlchemyError, match="readonly"):
        connection.execute(insert(RUNS).values(run_uuid="x"))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://127.0.0.1:5000", "is read from MLflow's database"),
        ("sqlite:////nowhere/mlflow.db", "there is no tracking store yet"),
        ("postgresql://me:secret@127.0.0.1:1/x", "not a readable MLflow database"),
    ],
)
def test_a_store_that_cannot_be_read_is_refused_with_a_way_out(uri: str, message: str) -> None:
    with pytest.raises(LineageUnavailable, match=message) as error:
        open_database(uri)
    assert "secret" not in str(error.value)


def test_another_file_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("hello")
    with pytest.raises(LineageUnavailable, match="the tracking store cannot be read"):
        open_database(f"sqlite:///{tmp_path / 'x.db'}")

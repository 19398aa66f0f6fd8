"""MLflow's tables, as the pages rely on them, and nothing written to them."""

from pathlib import Path

import pytest
from sqlalchemy import insert, inspect
from sqlalchemy.exc import SQLAlchemyError

from infra.lineage.database import RUNS, TABLES, LineageUnavailable, open_database
from tests.lineage.recorded import Stored


def test_mlflow_has_the_tables_and_columns_that_are_relied_on(store: Stored) -> None:
    found = inspect(open_database())
    for table in TABLES:
        columns = {column["name"] for column in found.get_columns(table.name)}
        assert {column.name for column in table.columns} <= columns, table.name


def test_the_lookups_by_run_have_an_index(store: Stored) -> None:
    """Without one a page of 50 executions would read the whole table."""
    found = inspect(open_database())
    for table in ("tags", "params", "latest_metrics", "metrics"):
        assert ["run_uuid"] in [index["column_names"] for index in found.get_indexes(table)], table


def test_nothing_can_be_written(store: Stored) -> None:
    with open_database().connect() as connection, pytest.raises(SQLAlchemyError, match="readonly"):
        connection.execute(insert(RUNS).values(run_uuid="x"))


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://127.0.0.1:5000", "is read from MLflow's database itself"),
        ("sqlite:////nowhere/mlflow.db", "there is no tracking store yet"),
        ("postgresql://me:secret@127.0.0.1:1/x", "not a database of MLflow's"),
    ],
)
def test_a_store_that_cannot_be_read_is_refused_with_a_way_out(uri: str, said: str) -> None:
    with pytest.raises(LineageUnavailable, match=said) as error:
        open_database(uri)
    assert "secret" not in str(error.value)


def test_another_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("hello")
    with pytest.raises(LineageUnavailable, match="not a tracking store that can be read"):
        open_database(f"sqlite:///{tmp_path / 'x.db'}")

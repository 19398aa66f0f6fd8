"""Validation of a spec of rows before any data is read."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from pydantic import ValidationError

from baton.infra.errors import UserError
from baton.tasks.rows.spec import RowsSpec
from tests.rows.by_hand import jsonl
from tests.source import ROOT


@pytest.mark.parametrize("given", [{}, {"path": "a.jsonl", "huggingface": {"name": "owner/name"}}], ids=["none", "two"])
def test_rows_come_from_one_place(given: dict[str, Any]) -> None:
    (problem,) = RowsSpec.model_validate(given).problems()
    assert problem.allowed == "exactly one of path, huggingface, function, the rows' source"


def test_a_column_is_renamed_or_left_out() -> None:
    (problem,) = RowsSpec(path="a.jsonl", columns={"prompt": "q", "q": None}).problems()
    assert (problem.path, problem.value) == ("columns", "q")


@pytest.mark.parametrize(
    "wrong",
    [{"held_out": 1.5}, {"limit": 0}, {"format": "csv"}, {"max_row_mb": 0}, {"faulty": "ignore"}, {"colums": {}}],
    ids=str,
)
def test_what_is_out_of_bounds_or_unknown_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RowsSpec.model_validate({"path": "a.jsonl"} | wrong)


def test_files_that_are_not_there_are_missing(tmp_path: Path) -> None:
    (problem,) = RowsSpec(path=str(tmp_path / "*.jsonl")).missing()
    assert problem.path == "path" and "nothing matches" in problem.allowed


def test_a_split_that_a_data_set_does_not_have_is_missing(tmp_path: Path) -> None:
    DatasetDict({"test": Dataset.from_list([{"question": "a"}])}).save_to_disk(tmp_path / "set")
    spec = RowsSpec.model_validate({"huggingface": {"name": str(tmp_path / "set")}})
    (problem,) = spec.missing()
    assert problem.path == "huggingface.split" and "one of test" in problem.allowed
    spec = RowsSpec.model_validate({"huggingface": {"name": str(tmp_path / "set"), "split": "test"}})
    assert spec.missing() == []


def test_a_function_that_is_not_there_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text("def rows(): return []\n")
    assert RowsSpec.model_validate({"function": f"{tmp_path / 'sums.py'}:rows"}).missing() == []
    (problem,) = RowsSpec.model_validate({"function": f"{tmp_path / 'sums.py'}:row"}).missing()
    assert problem.path == "function.name" and "rows" in problem.allowed
    with pytest.raises(UserError):
        RowsSpec.model_validate({"function": f"{tmp_path / 'sums.py'}:row"}).pinned()


def test_a_spec_and_a_look_at_rows_load_no_heavy_library() -> None:
    program = (
        "import sys, baton.tasks.rows.spec, baton.tasks.posttrain.encode, baton.tasks.rows.formats; print(*sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "trl", "datasets", "pyarrow"} & set(ended.stdout.split())


def test_changed_files_and_changed_code_are_another_set(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", {"text": "a"})
    before = RowsSpec(path=str(source)).pinned()
    os.utime(source, (0, 0))
    assert RowsSpec(path=str(source)).pinned().identity() != before.identity()
    (tmp_path / "sums.py").write_text("def rows(): return []\n")
    spec = RowsSpec.model_validate({"function": f"{tmp_path / 'sums.py'}:rows"})
    found = spec.pinned()
    assert found.function and found.function.source == {"sums.py": "def rows(): return []\n"}
    (tmp_path / "sums.py").write_text("def rows(): return [{}]\n")
    assert spec.pinned().identity() != found.identity()

"""Errors in the data specs, and missing files that they report before a run."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from pydantic import ValidationError

from baton.tasks.data.spec import CorpusSpec, TokenizerSpec


def corpus(**source: Any) -> CorpusSpec:
    return CorpusSpec.model_validate({"source": source})


def only_problem(spec: CorpusSpec) -> str:
    (problem,) = spec.missing()
    return str(problem)


def test_the_default_corpus_is_the_standard_library() -> None:
    assert CorpusSpec().source.kind == "stdlib"
    assert CorpusSpec().missing() == []


def test_a_spec_survives_json() -> None:
    spec = corpus(kind="jsonl", path="a/*.jsonl", text_field="body")
    assert CorpusSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        ({"held_out": 0}, ("held_out",)),
        ({"held_out": 0.5}, ("held_out",)),
        ({"held_out": "some"}, ("held_out",)),
        ({"seed": 1}, ("seed",)),
        ({"source": {"kind": "web"}}, ("source",)),
        ({"source": {"kind": "files"}}, ("source", "files", "path")),
        ({"source": {"kind": "files", "path": ""}}, ("source", "files", "path")),
        ({"source": {"kind": "files", "path": "a", "text_field": "x"}}, ("source", "files", "text_field")),
        ({"source": {"kind": "huggingface", "name": "a/b", "limit": 0}}, ("source", "huggingface", "limit")),
    ],
)
def test_a_wrong_corpus_field_is_named(raw: dict[str, Any], where: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as error:
        CorpusSpec.model_validate(raw)
    assert [item["loc"] for item in error.value.errors()] == [where]


@pytest.mark.parametrize("raw", [{"vocab_size": 259}, {"vocab_size": 2_000_000}, {"existing": ""}, {"workers": 2}])
def test_a_wrong_tokenizer_field_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TokenizerSpec.model_validate(raw)


def test_a_tokenizer_is_either_trained_or_existing() -> None:
    for spec in (TokenizerSpec(), TokenizerSpec(vocab_size=300, existing="gpt2")):
        (problem,) = spec.problems()
        assert "either vocab_size (to train one) or existing" in problem.allowed
    assert TokenizerSpec(vocab_size=300).problems() == TokenizerSpec(existing="gpt2").problems() == []


def test_how_a_tokenizer_is_trained_is_not_said_of_an_existing_one() -> None:
    (problem,) = TokenizerSpec(existing="gpt2", min_frequency=3).problems()
    assert (problem.path, problem.allowed) == ("min_frequency", "unset with `existing`, which is not trained")


def test_an_existing_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    (problem,) = TokenizerSpec(existing=str(tmp_path)).missing()
    assert "tokenizer.json" in problem.allowed
    (problem,) = TokenizerSpec(existing="./no/such/folder").missing()
    assert problem.path == "existing"
    assert TokenizerSpec(existing="Qwen/Qwen3-0.6B").missing() == []  # a name on the Hub, not checked without a network


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    assert "does not exist" in only_problem(corpus(kind="files", path=str(tmp_path / "nowhere")))
    assert "has none" in only_problem(corpus(kind="files", path=str(tmp_path)))
    assert "nothing matches" in only_problem(corpus(kind="files", path=f"{tmp_path}/**/*.py"))
    (tmp_path / "a.csv").write_text("x")
    assert "a .parquet file" in only_problem(corpus(kind="parquet", path=f"{tmp_path}/a.csv"))
    (tmp_path / "a.txt").touch()
    assert only_problem(corpus(kind="files", path=str(tmp_path))).startswith("source.path: ")
    assert "are empty" in only_problem(corpus(kind="files", path=str(tmp_path)))


def test_a_jsonl_whose_first_record_lacks_the_field(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"body": "x", "id": 1}) + "\n")
    assert "body, id" in only_problem(corpus(kind="jsonl", path=str(path)))
    assert corpus(kind="jsonl", path=str(path), text_field="body").missing() == []
    path.write_text("no json\n")
    assert "not JSON" in only_problem(corpus(kind="jsonl", path=str(path)))
    path.write_bytes(b'\xff\xfe\n{"body": "x"}\n')
    assert "is UTF-16" in only_problem(corpus(kind="jsonl", path=str(path)))
    path.write_text("\n\n")
    assert "no JSON object" in only_problem(corpus(kind="jsonl", path=str(path)))


def test_a_parquet_file_without_the_column_and_one_that_is_none(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "x.parquet")
    assert "text_field: 'text'" in only_problem(corpus(kind="parquet", path=str(tmp_path)))
    (tmp_path / "x.parquet").write_text("not parquet at all")
    assert "Parquet files" in only_problem(corpus(kind="parquet", path=str(tmp_path)))


def test_a_split_or_configuration_that_a_saved_dataset_cannot_have(tmp_path: Path) -> None:
    Dataset.from_dict({"text": ["x"]}).save_to_disk(tmp_path / "one")
    Dataset.from_dict({"text": ["x"]}, split="test").save_to_disk(tmp_path / "test")
    one = {"kind": "huggingface", "name": str(tmp_path / "one")}
    assert corpus(**one).missing() == [] and corpus(**one, split="train").missing() == []
    assert "one data set, without splits" in only_problem(corpus(**one, split="validation"))
    assert "has no configurations" in only_problem(corpus(**one, config="en"))
    assert corpus(**one | {"name": str(tmp_path / "test")}, split="test").missing() == []


def test_a_saved_dataset_without_the_split_or_the_column(tmp_path: Path) -> None:
    DatasetDict({"train": Dataset.from_dict({"body": ["x"]})}).save_to_disk(tmp_path / "set")
    source = {"kind": "huggingface", "name": str(tmp_path / "set")}
    assert "one of train" in only_problem(corpus(**source, split="test"))
    assert "text_field: 'text'" in only_problem(corpus(**source))
    assert corpus(**source, text_field="body").missing() == []
    assert "does not exist" in only_problem(corpus(kind="huggingface", name=str(tmp_path / "elsewhere")))


def test_the_state_changes_with_a_file_of_the_same_size_and_time(tmp_path: Path) -> None:
    """`cp -p`, `rsync -t` and `tar` leave such files."""
    path = tmp_path / "a.txt"
    path.write_text("Monday")
    before, times = corpus(kind="files", path=str(path)).pinned().state, path.stat()
    path.write_text("Sunday")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert corpus(kind="files", path=str(path)).pinned().state != before


def test_the_state_changes_with_the_files_and_with_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    spec = corpus(kind="files", path=str(tmp_path))
    before = spec.pinned()
    assert before == spec.pinned()
    (tmp_path / "unrelated.csv").write_text("x")
    assert before == spec.pinned()
    (tmp_path / "a.txt").write_text("two!")
    assert before != spec.pinned()


@pytest.mark.parametrize("file", ["dataset_dict.json", "train/dataset_info.json"])
@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000])
def test_a_saved_dataset_that_is_damaged_is_a_problem(tmp_path: Path, file: str, content: str) -> None:
    DatasetDict({"train": Dataset.from_dict({"text": ["one"]})}).save_to_disk(tmp_path / "set")
    (tmp_path / "set" / file).write_text(content)
    assert "is damaged" in only_problem(corpus(kind="huggingface", name=str(tmp_path / "set")))

"""The corpus on disk, and its stable split."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.tasks.data.documents import ROW_GROUP_BYTES, SplitWriter, document, read_documents, row_groups, split_of

texts = st.lists(st.text(max_size=200), max_size=20)


def write(directory: Path, contents: list[str]) -> SplitWriter:
    directory.mkdir(parents=True, exist_ok=True)
    writer = SplitWriter(directory, "train")
    for number, text in enumerate(contents):
        writer.add(document(f"{number}.txt", text))
    writer.close()
    return writer


@given(texts)
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, contents: list[str]) -> None:
    directory = tmp_path_factory.mktemp("corpus")
    writer = write(directory, contents)
    found = list(read_documents(directory, "train"))
    assert [item.text for item in found] == contents
    assert [item.source for item in found] == [f"{number}.txt" for number in range(len(contents))]
    assert writer.bytes == sum(len(text.encode()) for text in contents)


def test_a_row_group_holds_about_a_mebibyte(tmp_path: Path) -> None:
    contents = [f"{number} " * 50_000 for number in range(40)]
    write(tmp_path, contents)
    groups = list(row_groups(tmp_path, "train"))
    assert len(groups) >= sum(map(len, contents)) // (2 * ROW_GROUP_BYTES)
    assert [item.text for item in read_documents(tmp_path, "train")] == contents


def test_the_same_documents_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, ["a", "b" * 1000, "ü"])
    one, two = (tmp_path / name / "train-00000.parquet" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_a_split_without_documents_has_no_file(tmp_path: Path) -> None:
    write(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
    assert list(read_documents(tmp_path, "train")) == []


@given(st.text(), st.floats(0.01, 0.49), st.floats(0.01, 0.49))
def test_a_larger_fraction_keeps_every_document_that_a_smaller_one_held_out(text: str, a: float, b: float) -> None:
    small, large = sorted((a, b))
    item = document("x", text)
    if split_of(item.id, small) == "held_out":
        assert split_of(item.id, large) == "held_out"


def test_about_the_asked_fraction_is_held_out() -> None:
    splits = [split_of(document("x", str(number)).id, 0.1) for number in range(5000)]
    assert 0.08 < splits.count("held_out") / 5000 < 0.12

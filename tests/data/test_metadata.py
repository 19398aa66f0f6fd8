"""Fields of a record beside its text, which are kept in its document."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from baton.tasks.data.corpus import work
from baton.tasks.data.documents import SPLITS, Document, read_documents, split_files
from baton.tasks.data.gather import work as gather
from baton.tasks.data.increment import work as find_new
from baton.tasks.data.spec import CorpusSpec
from tests.data.by_hand import new_job

RECORDS = [{"text": f"text {number}", "url": f"https://{number % 3}.example/{number}"} for number in range(60)]
KINDS = ["jsonl", "parquet", "arrow", "huggingface"]


def source_of(kind: str, folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    table = pa.Table.from_pylist(RECORDS)
    if kind == "jsonl":
        (folder / "pages.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    elif kind == "parquet":
        pq.write_table(table, folder / "pages.parquet")
    elif kind == "arrow":
        with pa.OSFile(str(folder / "pages.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    else:
        datasets.Dataset.from_list(RECORDS).save_to_disk(str(folder / "saved"))
        return {"kind": kind, "name": str(folder / "saved"), "metadata": ["url"]}
    return {"kind": kind, "path": str(folder), "metadata": ["url"]}


def corpus(folder: Path, **spec: Any) -> Path:
    found = CorpusSpec.model_validate({"held_out": 0.3} | spec).pinned()
    job = new_job(folder, "corpus", found.model_dump(mode="json"))
    work(job)
    return job.output


def documents(corpus: Path) -> dict[str, Document]:
    return {item.text: item for split in SPLITS for item in read_documents(corpus, split)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_keeps_the_fields_that_its_source_names(kind: str, tmp_path: Path) -> None:
    made = documents(corpus(tmp_path / "job", source=source_of(kind, tmp_path / "source")))
    assert len(made) == len(RECORDS)
    assert all(made[record["text"]].metadata == {"url": record["url"]} for record in RECORDS)


def test_functions_see_them_and_masked_texts_keep_them(tmp_path: Path) -> None:
    function = tmp_path / "filters.py"
    function.write_text("def keep(document):\n    return not document.metadata['url'].startswith('https://1.')\n")
    curate = [{"pii": {}}, {"function": f"{function}:keep"}]
    made = documents(corpus(tmp_path / "job", source=source_of("jsonl", tmp_path / "source"), curate=curate))
    assert len(made) == 40
    assert all(item.metadata["url"].startswith(("https://0.", "https://2.")) for item in made.values())


def test_a_source_without_them_is_held_out_beside_one_with_them(tmp_path: Path) -> None:
    (tmp_path / "books.jsonl").write_text(
        "".join(json.dumps({"text": f"book {number}"}) + "\n" for number in range(60))
    )
    books = {"kind": "jsonl", "path": str(tmp_path / "books.jsonl")}
    made = corpus(tmp_path / "job", sources={"web": source_of("jsonl", tmp_path / "web"), "books": books})
    held_out = list(read_documents(made, "held_out"))
    assert {bool(item.metadata) for item in held_out if item.source.startswith("web/")} == {True}
    assert {bool(item.metadata) for item in held_out if item.source.startswith("books/")} == {False}
    (of_books,) = split_files(made, "train", "books")
    assert "metadata" not in pq.read_schema(of_books).names


def test_they_stay_when_corpora_are_gathered(tmp_path: Path) -> None:
    source = source_of("jsonl", tmp_path / "source")
    first = corpus(tmp_path / "first", source=source)
    more = {"text": "new", "url": "https://new.example"}
    with (tmp_path / "source" / "pages.jsonl").open("a") as file:
        file.write(json.dumps(more) + "\n")
    day = new_job(tmp_path / "day", "increment", {"held_out": 0.3, "source": source}, known=[first])
    find_new(day)
    both = new_job(tmp_path / "both", "gather", {}, corpora=[first, day.output], newest=day.output)
    gather(both)
    made = documents(both.output)
    assert len(made) == len(RECORDS) + 1
    assert all(made[record["text"]].metadata == {"url": record["url"]} for record in [*RECORDS, more])


def test_what_json_cannot_represent_is_a_string(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_pylist([{"text": f"t{n}", "day": date(2026, 1, 2)} for n in range(20)]), tmp_path / "x.parquet"
    )
    made = corpus(tmp_path / "job", source={"kind": "parquet", "path": str(tmp_path), "metadata": ["day"]})
    assert {item.metadata["day"] for item in documents(made).values()} == {"2026-01-02"}


def test_integers_of_any_size_are_kept_and_nan_is_null(tmp_path: Path) -> None:
    line = '{{"text": "t{}", "id": 123456789012345678901234567890, "score": NaN}}\n'
    (tmp_path / "x.jsonl").write_text("".join(map(line.format, range(20))))
    source = {"kind": "jsonl", "path": str(tmp_path), "metadata": ["id", "score"]}
    one = documents(corpus(tmp_path / "job", source=source))["t7"]
    assert one.metadata == {"id": 123456789012345678901234567890, "score": None}


def test_a_jsonl_record_may_lack_a_field(tmp_path: Path) -> None:
    lines = [{"text": f"t{n}"} | ({"url": "u"} if n > 50 else {}) for n in range(60)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = {"kind": "jsonl", "path": str(tmp_path), "metadata": ["url"]}
    assert not CorpusSpec.model_validate({"source": source}).missing()
    made = documents(corpus(tmp_path / "job", source=source))
    assert sorted(text for text, item in made.items() if item.metadata) == [f"t{n}" for n in range(51, 60)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_no_record_has_is_found_before_the_run(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path / "source") | {"metadata": ["url", "link"]}
    (problem,) = CorpusSpec.model_validate({"source": source}).missing()
    assert (problem.path, problem.value) == ("source.metadata", "link")
    assert "text, url" in problem.allowed

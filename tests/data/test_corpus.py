"""The corpus engine: the documents that it keeps and skips, and the split of each document."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.job import Job, StageError
from baton.tasks.data.corpus import work
from baton.tasks.data.documents import read_documents
from baton.tasks.data.spec import CorpusSpec
from baton.tasks.pages.deck import stage_page
from tests.data.by_hand import digest, facts, new_job, run
from tests.pages.reading import Reading


def prepared(job_dir: Path, folder: Path, held_out: float = 0.3) -> Path:
    spec = {"source": {"kind": "files", "path": str(folder)}, "held_out": held_out}
    job = new_job(job_dir, "corpus", spec)
    work(job)
    return job.output


def texts(corpus: Path, split: Any) -> list[str]:
    return [item.text for item in read_documents(corpus, split)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(f"document {number}\n")
    return folder


def test_every_document_is_in_one_split_and_counted(folder: Path, tmp_path: Path) -> None:
    corpus = prepared(tmp_path / "job", folder)
    train, held_out = texts(corpus, "train"), texts(corpus, "held_out")
    assert sorted(train + held_out) == sorted(f"document {number}\n" for number in range(40))
    assert facts(corpus) == {
        "documents": len(train),
        "held_out_documents": len(held_out),
        "bytes": sum(map(len, train)),
        "held_out_bytes": sum(map(len, held_out)),
        "duplicates": 0,
        "empty": 0,
        "invalid_utf8": 0,
    }


def test_duplicates_empty_documents_and_invalid_utf8_are_left_out_and_counted(folder: Path, tmp_path: Path) -> None:
    clean = digest(prepared(tmp_path / "clean", folder))
    (folder / "x1.txt").write_text("document 3\n")
    (folder / "x2.txt").write_text("document 3\n")
    (folder / "x3.txt").write_text("")
    (folder / "x4.txt").write_text(" \n\t")
    (folder / "x5.txt").write_bytes(b"caf\xe9")
    corpus = prepared(tmp_path / "job", folder)
    counts = facts(corpus)
    assert (counts["duplicates"], counts["empty"], counts["invalid_utf8"]) == (2, 2, 1)
    assert digest(corpus) == clean


def test_utf_16_and_binary_files_are_left_out_and_named(folder: Path, tmp_path: Path) -> None:
    """These files are valid UTF-8: text with NUL characters."""
    clean = digest(prepared(tmp_path / "clean", folder))
    (folder / "y1.txt").write_bytes("hello".encode("utf-16-le"))
    (folder / "y2.txt").write_bytes(b"\x7fELF\2\1\0\0")
    (folder / "y3.txt").write_bytes(b"caf\xe9")
    (folder / "y4.txt").write_bytes("hello".encode("utf-32-be"))
    corpus = prepared(tmp_path / "job", folder)
    assert (facts(corpus)["invalid_utf8"], digest(corpus)) == (4, clean)
    notice = (tmp_path / "job/notices.jsonl").read_text()
    assert "4 documents are not UTF-8, or have NUL characters, and are left out" in notice
    assert "such as y1.txt, y2.txt, y3.txt: convert" in notice


def test_the_held_out_documents_stay_when_others_come_and_go(folder: Path, tmp_path: Path) -> None:
    before = texts(prepared(tmp_path / "before", folder), "held_out")
    gone = (folder / "05.txt").read_text()
    (folder / "05.txt").unlink()
    (folder / "00-first.txt").write_text("a new document\n")
    after = texts(prepared(tmp_path / "after", folder), "held_out")
    assert [text for text in before if text != gone] == [text for text in after if text != "a new document\n"]


def test_the_digest_says_what_is_in_it_and_not_where_it_was(folder: Path, tmp_path: Path) -> None:
    one = prepared(tmp_path / "one", folder)
    moved = folder.rename(tmp_path / "elsewhere")
    for path in moved.iterdir():
        os.utime(path, (0, 0))
    assert digest(prepared(tmp_path / "two", moved)) == digest(one)


def test_a_byte_order_mark_is_not_text(folder: Path, tmp_path: Path) -> None:
    (folder / "bom.txt").write_bytes(b"\xef\xbb\xbfmarked\n")
    corpus = prepared(tmp_path / "job", folder)
    assert "marked\n" in texts(corpus, "train") + texts(corpus, "held_out")


def test_an_interrupted_attempt_leaves_no_trace(folder: Path, tmp_path: Path) -> None:
    whole = digest(prepared(tmp_path / "whole", folder))
    leftover = tmp_path / "again" / "output" / "train-00007.parquet"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    assert digest(prepared(tmp_path / "again", folder)) == whole


def test_a_source_without_any_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("  ")
    (tmp_path / "in" / "b.txt").write_bytes(b"\xff")
    with pytest.raises(StageError, match=r"no documents \(1 empty, 1 not UTF-8 or with NULs\)"):
        prepared(tmp_path / "job", tmp_path / "in")


@pytest.mark.parametrize(("held_out", "fix"), [(0.000001, "larger held_out"), (0.4999, "smaller held_out")])
def test_an_empty_split_is_refused_with_a_way_out(tmp_path: Path, held_out: float, fix: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("document 2\n")  # held out by fractions above 0.011
    with pytest.raises(StageError, match=fix):
        prepared(tmp_path / "job", tmp_path / "in", held_out)


def test_the_engine_by_hand_on_the_standard_library(tmp_path: Path) -> None:
    spec = {"source": {"kind": "stdlib"}}
    one = run(new_job(tmp_path / "one", "corpus", spec))
    two = run(new_job(tmp_path / "two", "corpus", spec))
    assert digest(one) == digest(two)
    assert facts(one)["bytes"] > 8e6
    assert facts(one)["held_out_documents"] > 10
    samples = json.loads((one / "record" / "samples.json").read_text())
    assert samples and set(samples[0]) == {"source", "text"}


def test_an_error_is_a_result_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"body": "x"}\n')
    job = new_job(tmp_path / "job", "corpus", {"source": {"kind": "jsonl", "path": str(tmp_path / "x.jsonl")}})
    with pytest.raises(AssertionError) as failed:
        run(job)
    result = json.loads((job.directory / "result.json").read_text())
    assert result["kind"] == "BrokenRecord"
    assert "no field 'text'" in result["error"]
    assert not (job.output / "manifest.json").exists()
    assert "no field 'text'" in str(failed.value)


def test_what_is_broken_and_what_is_not_read_is_reported_file_by_file(tmp_path: Path) -> None:
    """Broken lines and unread files are reported in the terminal and the report, and on the artifact's page: 12 of 106
    lines, and 9 files of another kind."""
    folder = tmp_path / "documents"
    folder.mkdir()
    records = [json.dumps({"text": f"document {number}"}) for number in range(134)]
    broken = [*records[:50], *['{"text": "cut o'] * 12, *records[50:94]]
    (folder / "a.jsonl").write_text("\n".join(broken))
    (folder / "b.jsonl").write_text("\ufeff" + "\n".join(records[94:]))  # starts with a byte order mark
    for number in range(8):
        (folder / f"{number}.txt").write_text("text")
    (folder / "c.pdf").write_bytes(b"%PDF-")
    source = {"kind": "jsonl", "path": str(folder), "on_broken": "skip"}
    job = new_job(tmp_path / "job", "corpus", {"source": source, "held_out": 0.3})
    work(job)
    counts = facts(job.output)
    assert counts["documents"] + counts["held_out_documents"] == 134
    assert (counts["broken"], counts["broken_records"]) == (1, 12)
    notices = "".join(json.loads(line)["text"] for line in job.notices.read_text().splitlines())
    page = Reading(stage_page(job.output)).text
    skipped = ("a.jsonl, line 51: not JSON", "and 11 more records of this file")
    assert [words for words in skipped for text in (notices, page) if words not in text] == []
    assert "9 files are not read: 8 .txt (kind: files reads them), 1 .pdf" in notices


def test_what_was_skipped_as_broken_stops_a_corpus_that_allows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to the corpus, and not to its partitions, so text that was read is not read again."""
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    tmp_path.joinpath("a.jsonl").write_text("\n".join(json.dumps({"text": f"document {n}"}) for n in range(400)))
    tmp_path.joinpath("b.jsonl").write_text('{"text": "whole"}\n{"text": "cut o')

    def job(on_broken: str) -> Job:
        source = {"kind": "jsonl", "path": str(tmp_path / "*.jsonl"), "on_broken": on_broken}
        spec = {"source": source, "held_out": 0.3, "partitions": {"size_mb": 0.001}}
        return new_job(tmp_path / "job", "corpus", spec)

    skip, stop = (job(how).spec(CorpusSpec).identity() for how in ("skip", "stop"))
    assert skip != stop
    work(job("skip"))
    read = {path.name for path in (tmp_path / "home" / "partitions").glob("*.scan")}
    with pytest.raises(StageError, match=r"b\.jsonl, line 2: not JSON .* set on_broken: skip"):
        work(job("stop"))
    assert {path.name for path in (tmp_path / "home" / "partitions").glob("*.scan")} == read != set()

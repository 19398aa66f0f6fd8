"""Each kind of source, read from real files."""

import gzip
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import example, given
from hypothesis import strategies as st

from baton.tasks.core.job import StageError
from baton.tasks.data.first_record import missing
from baton.tasks.data.found_files import find_files
from baton.tasks.data.readers.jsonl import PLACE_LINES, parsed
from baton.tasks.data.readers.raw import Broken
from baton.tasks.data.source_spec import (
    AnySource,
    ArrowSource,
    FilesSource,
    HuggingFaceSource,
    JsonlSource,
    ParquetSource,
    StdlibSource,
)
from baton.tasks.data.sources import read_source
from baton.tasks.data.spec import CorpusSpec


def found(source: AnySource) -> dict[str, bytes]:
    return {raw.source: raw.text for raw in read_source(source)}


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def test_the_standard_library_comes_without_its_tests_and_without_what_is_installed() -> None:
    names = [file.name for file in StdlibSource().files()]
    assert {"ast.py", "asyncio/events.py", "json/decoder.py"} <= set(names)
    assert not [name for name in names if {"test", "tests", "site-packages", "idle_test"} & set(name.split("/"))]
    assert names == sorted(names, key=lambda name: name.split("/"))
    assert 8e6 < sum(file.size for file in StdlibSource().files()) < 16e6


def test_a_folder_is_read_to_the_bottom_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a/deep/x.md", "a/y.py", "picture.png", ".git/config.txt", ".hidden.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(found(FilesSource(path=str(tmp_path)))) == ["a/deep/x.md", "a/y.py", "b.txt"]


def test_a_glob_names_documents_from_its_fixed_part_on(tmp_path: Path) -> None:
    for name in ("one/a.py", "two/b.py", "two/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(found(FilesSource(path=f"{tmp_path}/*/*.py"))) == ["one/a.py", "two/b.py"]
    assert list(found(FilesSource(path=f"{tmp_path}/**/*.txt"))) == ["two/c.txt"]


def test_one_file_is_a_source_too(tmp_path: Path) -> None:
    (tmp_path / "only.md").write_bytes(b"\xff\r\n")
    assert found(FilesSource(path=f"{tmp_path}/only.md")) == {"only.md": b"\xff\r\n"}


def test_what_a_folder_has_is_read_or_counted_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "in"
    for name in ("a.txt", "b.pdf", "c.pdf", "deep/d.jsonl", "deep/e.txt.gz", ".hidden/f.txt", "README", "g.TXT"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (tmp_path / "elsewhere" / "h.txt").write_text("behind a link")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "deep" / "loop").symlink_to(folder)
    (folder / "gone.txt").symlink_to(tmp_path / "nowhere")
    (folder / "itself").symlink_to(folder / "itself")
    os.mkfifo(folder / "pipe.txt")
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")).write_text("a name in Latin-1")
    source = FilesSource(path=str(folder))
    assert source.state()
    assert found(source) == {"a.txt": b"a.txt", "link/h.txt": b"behind a link"}
    assert source.unread() == (
        f"{folder}: 12 files are not read: 2 .pdf, 2 broken link, 1 .TXT, 1 .jsonl (kind: jsonl reads them), "
        "1 .txt.gz, 1 hidden, 1 link to a folder that is read already, 1 name that is not UTF-8, "
        "1 neither file nor folder, 1 without a suffix"
    )
    assert FilesSource(path=f"{folder}/*").unread() == (
        f"{folder}/*: 10 files are not read: 2 .pdf, 2 broken link, 2 folder (a glob with ** reads its files), 1 .TXT, "
        "1 name that is not UTF-8, 1 neither file nor folder, 1 without a suffix"
    )
    assert "1 .jsonl (kind: jsonl reads them)" in FilesSource(path=f"{folder}/**").unread()
    assert FilesSource(path=str(folder / "a.txt")).unread() == ""
    (problem,) = missing(ParquetSource(path=str(folder)))
    assert "2 .pdf" in problem.allowed


@pytest.mark.parametrize("kind", [FilesSource, JsonlSource, HuggingFaceSource])
def test_files_that_are_removed_while_their_folder_is_read_are_no_part_of_it(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    source = kind(**{"name" if kind is HuggingFaceSource else "path": str(tmp_path)})
    folder, over = tmp_path / "passing", threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            folder.mkdir()
            (folder / "b.jsonl").write_text('{"text": "b"}')
            (folder / "b.jsonl").unlink()
            folder.rmdir()

    with ThreadPoolExecutor() as pool:
        done = pool.submit(come_and_go)
        try:
            assert all(source.state() for _ in range(2000))
        finally:
            over.set()
    done.result()


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_jsonl_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    data = lines({"text": "one"}, {"text": "zwei ü", "id": 2}) + b"\n" + lines({"text": "three"})
    path = tmp_path / f"pages{suffix}"
    if suffix.endswith("gz"):
        path.write_bytes(gzip.compress(data[:20]) + gzip.compress(data[20:]))  # two members, as `cat a.gz b.gz` writes
    elif suffix.endswith("zst"):
        path.write_bytes(pa.Codec("zstd").compress(data, asbytes=True))
    else:
        path.write_bytes(data)
    expected = {"#1": b"one", "#2": "zwei ü".encode(), "#4": b"three"}
    assert found(JsonlSource(path=str(tmp_path))) == {path.name + line: text for line, text in expected.items()}


def test_jsonl_text_that_is_not_utf8_is_handed_on_as_the_bytes_it_is(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "\\ud800"}\n{"text": "\xff"}\n{"text": null}\n')
    surrogate, latin, nothing = found(JsonlSource(path=str(tmp_path))).values()
    for text in (surrogate, latin):
        with pytest.raises(UnicodeDecodeError):
            text.decode()
    assert nothing == b""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"body": "x"}', "no field 'text'; it has body"),
        (b'{"text": "x"', "line 2: not JSON"),
        (b'["text"]', "must be a JSON object, not list"),
        (b'{"text": 3}', "the text is a int"),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(StageError, match="line 2") as error:
        found(JsonlSource(path=str(tmp_path)))
    assert message in str(error.value)


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "x", "deep": ' + DEEP + b"}", "not JSON (maximum recursion depth exceeded"),
        (b'{"text": "x", "id": ' + b"9" * 5000 + b"}", "not JSON (Exceeds the limit (4300 digits)"),
        (b'{"text": "x"}\0', "not JSON (Extra data"),
        (b'{"text": "a\0b"}', "not JSON (Invalid control character"),
        (b'{"\\ud800\\n": "x"}', r"it has '\ud800\n'."),
        (b"{" + b", ".join(b'"%d": 1' % number for number in range(10_000)) + b"}", "18, 19, and 9980 more."),
        (b'{"' + b"x" * 1000 + b'": 1}', "it has " + "x" * 40 + "…"),
    ],
    ids=["nested", "digits", "nul", "nul in text", "half a character", "fields", "a field"],
)
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_a_hostile_jsonl_line_is_named(tmp_path: Path, suffix: str, line: bytes, message: str) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(compressed(b'{"text": "fine"}\n' + line + b"\n", suffix))
    with pytest.raises(StageError, match=rf"x\.{suffix}, line 2: ") as error:
        found(JsonlSource(path=str(tmp_path)))
    assert message in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000


def test_what_python_writes_for_a_number_that_is_none_is_read(tmp_path: Path) -> None:
    """json.dumps writes NaN, which is not standard JSON, in a field other than the text."""
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "x", "score": float("nan")}))
    assert list(found(JsonlSource(path=str(tmp_path))).values()) == [b"x"]


def test_nul_in_a_document_is_a_character_like_others(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "a\\u0000b"}\n')
    assert list(found(JsonlSource(path=str(tmp_path))).values()) == [b"a\0b"]


def compressed(data: bytes, suffix: str) -> bytes:
    if suffix.endswith("gz"):
        return gzip.compress(data)
    return pa.Codec("zstd").compress(data, asbytes=True) if suffix.endswith("zst") else data


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_a_jsonl_line_over_the_limit_is_named_and_not_read(tmp_path: Path, suffix: str) -> None:
    """A line of 100 MB: memory never holds more than the limit."""
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(compressed(b'{"text": "fine"}\n{"text": "' + b" " * 100_000_000 + b'"}\n', suffix))
    program = f"""if True:
        import resource
        from baton.tasks.data.source_spec import JsonlSource
        from baton.tasks.data.readers.jsonl import parsed
        from baton.tasks.data.sources import read_source
        from baton.tasks.core.job import StageError
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            list(read_source(JsonlSource(path={str(path)!r}, max_document_mb=2)))
        except StageError as error:
            print(error)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"""
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    message, kilobytes = completed.stdout.splitlines()
    assert f"x.{suffix}, line 2: larger than max_document_mb = 2 MB" in message
    assert int(kilobytes) < 50_000


def test_a_document_as_large_as_the_limit_is_read(tmp_path: Path) -> None:
    line = lines({"text": "x" * 988})
    assert len(line) == 1001  # including the line end
    (tmp_path / "x.jsonl").write_bytes(line)
    assert len(found(JsonlSource(path=str(tmp_path), max_document_mb=0.001))) == 1
    (tmp_path / "x.jsonl").write_bytes(line.replace(b"xx", b"xxx", 1))
    with pytest.raises(StageError, match=r"line 1: larger than max_document_mb = 0\.001 MB"):
        found(JsonlSource(path=str(tmp_path), max_document_mb=0.001))


def test_a_file_over_the_limit_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 1000)
    (tmp_path / "b.txt").write_bytes(b"x" * 1001)
    with pytest.raises(StageError, match=r"b\.txt: larger than max_document_mb = 0\.001 MB"):
        found(FilesSource(path=str(tmp_path), max_document_mb=0.001))


def test_a_row_over_the_limit_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 1000, None, "x" * 1001]}), tmp_path / "x.parquet")
    Dataset.from_dict({"text": ["x" * 1000, None, "x" * 1001]}).save_to_disk(tmp_path / "saved")
    for source in (
        ParquetSource(path=f"{tmp_path}/x.parquet", max_document_mb=0.001),
        HuggingFaceSource(name=str(tmp_path / "saved"), max_document_mb=0.001),
    ):
        with pytest.raises(StageError, match=r"(row |#)2: larger than max_document_mb = 0\.001 MB"):
            found(source)


def test_what_is_missing_is_said_without_reading_more_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"[" * 2000)
    (problem,) = missing(JsonlSource(path=str(tmp_path), max_document_mb=0.001))
    assert "x.jsonl, line 1: larger than max_document_mb = 0.001 MB" in problem.allowed


def test_the_limit_is_no_part_of_what_a_corpus_is(tmp_path: Path) -> None:
    """A change of the limit does not change a corpus's identity, so the source is not read again."""
    small, large = (
        CorpusSpec(source=JsonlSource(path=str(tmp_path), max_document_mb=limit)).identity() for limit in (1, 2)
    )
    assert small == large
    assert "max_document_mb" not in small["source"]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_that_was_cut_short_is_refused(tmp_path: Path, suffix: str) -> None:
    data = lines(*({"text": str(number**9)} for number in range(5000)))
    whole = gzip.compress(data) if suffix == "gz" else pa.Codec("zstd").compress(data, asbytes=True)
    (tmp_path / f"x.jsonl.{suffix}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StageError, match=r"damaged or truncated"):
        found(JsonlSource(path=str(tmp_path)))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_parquet_in_any_type_of_text(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array(["one", None, "ü", "one"]).cast(kind)
    pq.write_table(pa.table({"body": values, "n": [1, 2, 3, 4]}), tmp_path / "x.parquet", row_group_size=2)
    texts = found(ParquetSource(path=str(tmp_path), text_field="body"))
    assert texts == {"x.parquet#0": b"one", "x.parquet#1": b"", "x.parquet#2": "ü".encode(), "x.parquet#3": b"one"}


def test_a_parquet_column_of_numbers_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "x.parquet")
    with pytest.raises(StageError, match="'text' is int64, not text"):
        found(ParquetSource(path=str(tmp_path)))


def test_a_parquet_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 1000]}), tmp_path / "x.parquet")
    data = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(data[:-20])
    with pytest.raises(StageError, match="not readable as Parquet"):
        found(ParquetSource(path=str(tmp_path)))


def test_a_dataset_saved_to_disk(tmp_path: Path) -> None:
    Dataset.from_dict({"body": ["one", "two", None]}).save_to_disk(tmp_path / "plain")
    texts = found(HuggingFaceSource(name=str(tmp_path / "plain"), text_field="body"))
    assert list(texts.values()) == [b"one", b"two", b""]


def test_a_split_of_a_saved_dataset_up_to_a_limit(tmp_path: Path) -> None:
    splits = {name: Dataset.from_dict({"text": [f"{name} {n}" for n in range(5)]}) for name in ("train", "test")}
    DatasetDict(splits).save_to_disk(tmp_path / "both")
    texts = found(HuggingFaceSource(name=str(tmp_path / "both"), split="test", limit=2))
    assert list(texts.values()) == [b"test 0", b"test 1"]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_folder_that_the_datasets_library_can_load(tmp_path: Path, streaming: bool) -> None:
    """The code path is that of a name on the Hub: load_dataset, with or without streaming."""
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"text": ["one", "two", "three"]}), tmp_path / "set" / "train.parquet")
    texts = found(HuggingFaceSource(name=str(tmp_path / "set"), streaming=streaming, limit=2))
    assert list(texts.values()) == [b"one", b"two"]


def test_a_dataset_that_cannot_be_had_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Dataset.from_dict({"text": ["one"]}).save_to_disk(tmp_path / "plain")
    with pytest.raises(StageError, match="no column 'body'; it has text"):
        found(HuggingFaceSource(name=str(tmp_path / "plain"), text_field="body"))
    with pytest.raises(StageError, match="needs a network"):
        found(HuggingFaceSource(name="nobody/nothing-of-this-name"))


def test_a_dataset_of_the_hub_is_as_its_newest_commit_says(tmp_path: Path) -> None:
    """Otherwise a new version would go unnoticed. The Hub is a local server, which is stopped at the end."""
    info = tmp_path / "api" / "datasets" / "a" / "b"
    info.parent.mkdir(parents=True)
    info.write_text(json.dumps({"id": "a/b", "sha": "5" * 40}))
    program = """if True:
        from baton.tasks.data.spec import CorpusSpec
        print(CorpusSpec(source={"kind": "huggingface", "name": "a/b"}).pinned(ask_hub=True).state)"""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}

    def asked(**changes: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", program]
        return subprocess.run(words, env=os.environ | hub | changes, capture_output=True, text=True, check=False)

    threading.Thread(target=server.serve_forever, daemon=True).start()
    assert asked(HF_HUB_OFFLINE="0").stdout.strip() == "5" * 40
    assert asked(HF_HUB_OFFLINE="1").stdout.strip() == ""
    server.shutdown()
    server.server_close()
    assert "set HF_HUB_OFFLINE=1 to use the cached copy" in asked(HF_HUB_OFFLINE="0").stderr


def test_progress_runs_from_nothing_to_everything(tmp_path: Path) -> None:
    number = 20 * PLACE_LINES
    (tmp_path / "x.jsonl").write_bytes(lines(*({"text": "x" * 1000} for _ in range(number))))
    done = [raw.done for raw in read_source(JsonlSource(path=str(tmp_path)))]
    assert done == sorted(done)
    assert 0 <= done[0] < 1
    assert done[-1] == 1


BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_a_byte_order_mark_is_no_part_of_jsonl(tmp_path: Path, suffix: str) -> None:
    """Marks in the middle of concatenated files are included, as is the beginning that a plan reads first."""
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(compressed(BOM + lines({"text": "one"}, {"text": "two"}) + BOM + lines({"text": "three"}), suffix))
    source = JsonlSource(path=str(path))
    assert missing(source) == []
    assert list(found(source).values()) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_utf16_is_named(tmp_path: Path, encoding: str, suffix: str) -> None:
    text = "\ufeff" + lines({"text": "one"}, {"text": "two"}).decode()
    (tmp_path / f"x.{suffix}").write_bytes(compressed(text.encode(encoding), suffix))
    source = JsonlSource(path=str(tmp_path), on_broken="skip")
    with pytest.raises(StageError, match=rf"x\.{suffix}: is UTF-16, by its byte order mark"):
        found(source)
    assert "is UTF-16" in missing(source)[0].allowed


def skipped(source: AnySource) -> tuple[list[bytes], Broken]:
    """Return the documents and the skipped records."""
    broken = Broken()
    return [raw.text for raw in read_source(source, broken)], broken


def test_a_key_that_occurs_twice_is_a_broken_record_where_metadata_are_kept(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "a", "id": 1, "id": 2}\n' + lines({"text": "fine", "id": 3}))
    texts, broken = skipped(JsonlSource(path=str(tmp_path), on_broken="skip", metadata=["id"]))
    assert texts == [b"fine"]
    assert "x.jsonl, line 1: not JSON ('id' occurs twice in one object)" in str(broken["x.jsonl"])


def test_a_second_text_in_a_record_is_not_lost_silently(tmp_path: Path) -> None:
    twice, fine = b'{"text": "a", "text": "b"}\n', {"text": "c", "kind": "text", "inner": {"text": "d"}}
    content = twice + lines(fine) + b'{"n": 1, "n": 2, "text": "e"}\n' + b'{"text": "f", "\\u0074e\\u0078t": "g"}\n'
    (tmp_path / "x.jsonl").write_bytes(content + b'{"te\\u0078t": "one \\u0074"}\n')
    texts, broken = skipped(JsonlSource(path=str(tmp_path), on_broken="skip"))
    assert texts == [b"c", b"e", b"one t"] and broken["x.jsonl"].records == 2
    assert "x.jsonl, line 1: not JSON ('text' occurs twice in one object)" in str(broken["x.jsonl"])


@given(
    st.lists(st.tuples(st.booleans(), st.none() | st.just("text") | st.text()), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([":", ": ", " : "]),
)
def test_a_record_is_read_if_and_only_if_it_has_one_text(
    values: list[tuple[bool, str | None]], ascii_only: bool, colon: str
) -> None:
    names = ["text" if is_text else str(number) for number, (is_text, _) in enumerate(values)]
    fields = [
        f'"{name}"{colon}{json.dumps(value, ensure_ascii=ascii_only)}'
        for name, (_, value) in zip(names, values, strict=True)
    ]
    line = ("{" + ", ".join(fields) + "}").encode()
    texts = [value for is_text, value in values if is_text]
    with TemporaryDirectory() as folder:
        (Path(folder) / "x.jsonl").write_bytes(line)
        found, broken = skipped(JsonlSource(path=folder, on_broken="skip"))
    if len(texts) == 1:
        assert found == [(texts[0] or "").encode()]
    else:
        assert not found and len(broken) == 1


def test_broken_lines_are_skipped_one_by_one_and_counted_by_file(tmp_path: Path) -> None:
    good, bad = lines({"text": "fine"}), b'{"text": "cut o\n[1]\n{"body": "x"}\n{"text": 3}\n'
    (tmp_path / "a.jsonl").write_bytes(good + bad + good)
    (tmp_path / "b.jsonl").write_bytes(b"not json\n" + good)
    (tmp_path / "c.jsonl").write_bytes(good)
    source = JsonlSource(path=str(tmp_path), on_broken="skip")
    texts, broken = skipped(source)
    assert texts == [b"fine"] * 4
    assert {name: each.records for name, each in broken.items()} == {"a.jsonl": 4, "b.jsonl": 1}
    assert not any(each.rest for each in broken.values())
    assert "a.jsonl, line 2: not JSON" in str(broken["a.jsonl"])
    assert "and 3 more records of this file" in str(broken["a.jsonl"])
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([b"broken"] * 3))
    assert missing(source) == []  # a later file has records
    for path in tmp_path.iterdir():
        path.write_bytes(b"broken\n")
    assert "c.jsonl, line 1: not JSON" in str(missing(source)[0])


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst"])
@pytest.mark.parametrize("cut", [4, 30])
def test_of_a_damaged_compressed_file_all_before_the_damage_is_read(tmp_path: Path, suffix: str, cut: int) -> None:
    """The damage may be in the second of two members, or in a file that fits into the buffers."""
    first, second = (lines(*({"text": str(number**9)} for number in some)) for some in (range(100), range(100, 200)))
    whole = compressed(first, suffix) + compressed(second, suffix)
    (tmp_path / f"a.{suffix}").write_bytes(whole[:-cut])
    (tmp_path / f"b.{suffix}").write_bytes(compressed(lines({"text": "fine"}), suffix))
    texts, broken = skipped(JsonlSource(path=str(tmp_path), on_broken="skip"))
    assert texts[-1] == b"fine"
    assert texts[:-1] == [str(number**9).encode() for number in range(len(texts) - 1)]
    assert len(texts) > 100
    assert f"a.{suffix}, after line {len(texts) - 1}: damaged or truncated" in broken[f"a.{suffix}"].rest


def test_of_a_broken_parquet_file_the_other_row_groups_are_read(tmp_path: Path) -> None:
    table = pa.table({"text": [f"{number} {'x' * 50}" for number in range(30)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10, use_dictionary=False, compression="snappy")
    column = pq.read_metadata(tmp_path / "a.parquet").row_group(1).column(0)
    with (tmp_path / "a.parquet").open("r+b") as file:
        file.seek(column.data_page_offset + 30)
        file.write(b"\xff" * (column.total_compressed_size - 40))
    source = ParquetSource(path=str(tmp_path), on_broken="skip")
    texts, broken = skipped(source)
    assert [int(text.split()[0]) for text in texts] == [*range(10), *range(20, 30)]
    assert broken["a.parquet"].records == 10
    assert "row group 1" in broken["a.parquet"].first
    with pytest.raises(StageError, match=r"a\.parquet, row group 1: not readable as Parquet"):
        found(ParquetSource(path=str(tmp_path)))


def test_a_broken_parquet_file_is_skipped_by_choice(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(pa.table({"text": ["fine"]}), tmp_path / "b.parquet")
    source = ParquetSource(path=str(tmp_path), on_broken="skip")
    texts, broken = skipped(source)
    assert (texts, list(broken)) == ([b"fine"], ["a.parquet"])
    assert missing(source) == []
    assert "a.parquet" in str(missing(ParquetSource(path=str(tmp_path)))[0])
    (problem,) = missing(ParquetSource(path=str(tmp_path), on_broken="skip", text_field="body"))
    assert "b.parquet: text" in problem.allowed


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_two_columns_of_one_name_are_refused(kind: str, tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["text", "text", "url"])
    source = (ParquetSource if kind == "parquet" else ArrowSource)(path=str(tmp_path))
    if kind == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
            writer.write(table)
    assert "one column 'text'; " in missing(source)[0].allowed
    with pytest.raises(StageError, match=rf"a\.{kind}: has several columns 'text'"):
        found(source)
    with pytest.raises(StageError, match="has several columns 'text'"):
        found(source.model_copy(update={"text_field": "url", "metadata": ["text"]}))


def test_a_broken_arrow_file_is_skipped_by_choice(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"ARROW1 and no more")
    table = pa.table({"text": ["fine"]})
    with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as writer:
        writer.write(table)
    source = ArrowSource(path=str(tmp_path), on_broken="skip")
    assert skipped(source)[0] == [b"fine"]
    assert missing(source) == []
    (tmp_path / "b.arrow").unlink()
    assert "Arrow files; " in missing(source)[0].allowed


VALUES = st.recursive(
    st.none() | st.floats() | st.text(st.characters(categories=None)) | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.text(st.characters(categories=None)), VALUES, st.booleans())
@example("", 10**400, False)
@example("", float("nan"), True)
def test_json_is_read_as_pythons_own_parser_reads_it(text: str, more: object, escaped: bool) -> None:
    line = json.dumps({"text": text, "more": more}, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    try:
        expected = json.loads(line.decode())
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):
            parsed(line)
    else:
        assert parsed(line)["text"] == expected["text"]
        assert list(parsed(line)) == list(expected)


def test_a_long_search_for_files_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("baton.tasks.data.found_files.REPORT_EVERY", 2)
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    assert len(find_files(tmp_path, (".txt",)).files) == 5
    assert capsys.readouterr().err.splitlines() == [f"{tmp_path}: {n} files looked at so far" for n in (2, 4)]

"""Each kind of source, read from real files."""

import gzip
import json
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.data.readers.jsonl import PLACE_LINES, parsed
from tasks.data.source_spec import AnySource, FilesSource, HuggingFaceSource, JsonlSource, ParquetSource, StdlibSource
from tasks.data.sources import read_source
from tasks.data.spec import CorpusSpec
from tasks.job import StageError


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


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_jsonl_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    data = lines({"text": "one"}, {"text": "zwei ü", "id": 2}) + b"\n" + lines({"text": "three"})
    path = tmp_path / f"pages{suffix}"
    if suffix.endswith("gz"):
        path.write_bytes(gzip.compress(data[:20]) + gzip.compress(data[20:]))  # members, as `cat a.gz b.gz` makes
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
        (b"\xef\xbb\xbf" + b'{"text": "x"}', "not JSON (Unexpected UTF-8 BOM"),
    ],
    ids=["nested", "digits", "nul", "nul in text", "half a character", "fields", "a field", "bom"],
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
    """json.dumps writes NaN, which is not standard JSON, in another field than the text."""
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
    """100 MB on one line: never more than the limit is in memory."""
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(compressed(b'{"text": "fine"}\n{"text": "' + b" " * 100_000_000 + b'"}\n', suffix))
    program = f"""if True:
        import resource
        from tasks.data.source_spec import JsonlSource
        from tasks.data.readers.jsonl import parsed
        from tasks.data.sources import read_source
        from tasks.job import StageError
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
    assert len(line) == 1001  # with its end
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
    (problem,) = JsonlSource(path=str(tmp_path), max_document_mb=0.001).missing()
    assert "x.jsonl, line 1: larger than max_document_mb = 0.001 MB" in problem.allowed


def test_the_limit_is_no_part_of_what_a_corpus_is(tmp_path: Path) -> None:
    """Another limit does not change a corpus's identity, so it is not read again."""
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
    """The code path of a hub name: load_dataset, streaming or not."""
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
    """Otherwise nobody would notice that it grew. The hub is a local server, which then stops."""
    info = tmp_path / "api" / "datasets" / "a" / "b"
    info.parent.mkdir(parents=True)
    info.write_text(json.dumps({"id": "a/b", "sha": "5" * 40}))
    program = """if True:
        from tasks.data.spec import CorpusSpec
        print(CorpusSpec(source={"kind": "huggingface", "name": "a/b"}).as_found(ask_hub=True).state)"""
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


def test_a_broken_file_is_skipped_by_choice_and_counted(tmp_path: Path) -> None:
    whole = gzip.compress(lines(*({"text": f"{number} {'x' * number}"} for number in range(2000))))
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b.jsonl").write_bytes(b"not json\n")
    (tmp_path / "c.jsonl").write_bytes(lines({"text": "fine"}))
    broken: list[str] = []
    found = [raw.text for raw in read_source(JsonlSource(path=str(tmp_path), on_broken="skip"), broken)]
    assert found[-1] == b"fine"
    assert ["a.jsonl.gz, after line" in broken[0], "b.jsonl, line 1: not JSON" in broken[1]] == [True, True]
    with pytest.raises(StageError, match=r"damaged or truncated .* or set on_broken: skip"):
        list(read_source(JsonlSource(path=str(tmp_path))))


def test_a_broken_parquet_file_is_skipped_by_choice(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(pa.table({"text": ["fine"]}), tmp_path / "b.parquet")
    broken: list[str] = []
    source = ParquetSource(path=str(tmp_path), on_broken="skip")
    assert [raw.text for raw in read_source(source, broken)] == [b"fine"]
    assert len(broken) == 1


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

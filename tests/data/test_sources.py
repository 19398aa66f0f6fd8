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

from tasks.data.source_spec import FilesSource, HuggingFaceSource, JsonlSource, ParquetSource, StdlibSource
from tasks.data.sources import AnySource, read_source
from tasks.job import StageError


def found(source: AnySource) -> dict[str, bytes]:
    return {raw.source: raw.text for raw in read_source(source)}


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def test_the_standard_library_comes_without_its_tests_and_without_what_is_installed() -> None:
    names = [path.relative_to(StdlibSource().root()).as_posix() for path in StdlibSource().files()]
    assert {"ast.py", "asyncio/events.py", "json/decoder.py"} <= set(names)
    assert not [name for name in names if {"test", "tests", "site-packages", "idle_test"} & set(name.split("/"))]
    assert names == sorted(names, key=lambda name: name.split("/"))
    assert 8e6 < sum(path.stat().st_size for path in StdlibSource().files()) < 16e6


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
    ("line", "said"),
    [
        (b'{"body": "x"}', "no field 'text'; it has body"),
        (b'{"text": "x"', "line 2: not JSON"),
        (b'["text"]', "a JSON object is needed, not list"),
        (b'{"text": 3}', "the text is a int"),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(StageError, match="line 2") as error:
        found(JsonlSource(path=str(tmp_path)))
    assert said in str(error.value)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_that_was_cut_short_is_refused(tmp_path: Path, suffix: str) -> None:
    data = lines(*({"text": str(number**9)} for number in range(5000)))
    whole = gzip.compress(data) if suffix == "gz" else pa.Codec("zstd").compress(data, asbytes=True)
    (tmp_path / f"x.jsonl.{suffix}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StageError, match="damaged or cut short"):
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
    """The path that a hub name takes: load_dataset, streaming or not."""
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
    """Else nobody would notice that it grew. The hub is a server of ours, and is then gone."""
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
    assert "set HF_HUB_OFFLINE=1 to use what was downloaded earlier" in asked(HF_HUB_OFFLINE="0").stderr


def test_progress_runs_from_nothing_to_everything(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines(*({"text": "x" * 1000} for _ in range(300))))
    done = [raw.done for raw in read_source(JsonlSource(path=str(tmp_path)))]
    assert done == sorted(done)
    assert 0 <= done[0] < 1
    assert done[-1] == 1

"""Inputs at an address are streamed from a real S3 server, with Flyte's credentials."""

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from baton.infra.storage import address
from baton.infra.storage.buckets import StorageError
from baton.tasks.core.spec import NotSeen
from baton.tasks.data import corpus as corpus_engine
from baton.tasks.data import increment as increment_engine
from baton.tasks.data import tokenizer as tokenizer_engine
from baton.tasks.data.first_record import missing
from baton.tasks.data.source_changes import Changes
from baton.tasks.data.source_spec import AnySource, FilesSource, HuggingFaceSource, JsonlSource, ParquetSource
from baton.tasks.data.sources import read_source
from baton.tasks.data.spec import CorpusSpec, TokenizerSpec
from tests.data.by_hand import facts, names_in, new_job
from tests.s3 import S3, Faults, disturbed


@dataclass
class Bucket:
    """A local folder and its copy in a bucket."""

    server: S3
    here: Path
    address: str

    def write(self, name: str, content: bytes) -> None:
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.server.write(f"{self.address}/{name}".removeprefix(f"{self.server.address}/"), content)

    def send(self) -> None:
        """Upload the entire folder."""
        for path in self.here.rglob("*"):
            if path.is_file():
                self.write(path.relative_to(self.here).as_posix(), path.read_bytes())


@pytest.fixture
def bucket(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket, with Flyte's credentials set in this process."""
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    (tmp_path / "source").mkdir()
    with s3.flyte(tmp_path):
        yield Bucket(s3, tmp_path / "source", f"{s3.address}/{uuid4().hex}")


def found(source: AnySource) -> dict[str, bytes]:
    return {raw.source: raw.text for raw in read_source(source)}


def lines(*texts: str) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@pytest.mark.parametrize("path", ["", "/", "/a", "/*.txt", "/**/*.md", "/a/deep/x.md", "/b.txt"])
def test_a_folder_a_file_and_a_glob_give_the_documents_that_they_give_here(bucket: Bucket, path: str) -> None:
    for name in ("b.txt", "a/deep/x.md", "a/y.py", "a-b/z.txt", "picture.png", ".git/config.txt", "a/.hidden.md"):
        bucket.write(name, name.encode())
    there = found(FilesSource(path=f"{bucket.address}{path}"))
    assert list(there.items()) == list(found(FilesSource(path=f"{bucket.here}{path}")).items())
    assert there


def test_lines_compressed_or_not_and_rows_of_parquet(bucket: Bucket) -> None:
    bucket.write("a.jsonl", lines("one", "zwei ü"))
    bucket.write("b.jsonl.gz", gzip.compress(lines("three")))
    bucket.write("c.jsonl.zst", pa.Codec("zstd").compress(lines("four"), asbytes=True))
    pq.write_table(pa.table({"text": ["five", None, "six"], "n": [1, 2, 3]}), bucket.here / "d.parquet")
    bucket.send()
    for kind in (JsonlSource, ParquetSource):
        there, here = kind(path=bucket.address), kind(path=str(bucket.here))
        assert missing(there) == []
        assert found(there) == found(here)
    assert len(found(JsonlSource(path=bucket.address))) == 4


def test_a_saved_dataset_is_read_without_a_download(bucket: Bucket, tmp_path: Path) -> None:
    splits = {name: Dataset.from_dict({"text": [f"{name} {n}" for n in range(100)]}) for name in ("train", "test")}
    DatasetDict(splits).save_to_disk(bucket.here)
    bucket.send()
    source = HuggingFaceSource(name=bucket.address, split="test", limit=70)
    assert source.missing() == []
    assert list(found(source).values()) == [b"test %d" % number for number in range(70)]
    assert not (tmp_path / "cache").exists()
    (problem,) = HuggingFaceSource(name=bucket.address, split="dev").missing()
    assert (problem.path, problem.allowed.partition(" (")[0]) == ("split", "one of train, test")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_corpus_is_the_same_from_a_folder_and_from_an_address(bucket: Bucket, tmp_path: Path, kind: str) -> None:
    """The engine is a process that only receives Flyte's variables."""
    texts = [f"document {number}" for number in range(40)]
    if kind == "jsonl":
        (bucket.here / "x.jsonl").write_bytes(lines(*texts))
    else:
        pq.write_table(pa.table({"text": texts}), bucket.here / "x.parquet")
    bucket.send()
    corpora: list[dict[str, bytes]] = []
    for place in (str(bucket.here), bucket.address):
        spec = {"source": {"kind": kind, "path": place}, "held_out": 0.3}
        job = new_job(tmp_path / str(len(corpora)), "corpus", spec)
        completed = subprocess.run(
            [sys.executable, "-m", "baton.tasks.data.corpus", str(job.directory)],
            env=os.environ | bucket.server.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert completed.returncode == 0, completed.stderr
        corpora.append({path.name: path.read_bytes() for path in job.output.glob("*.parquet")})
    assert corpora[0] == corpora[1] != {}


@pytest.mark.long
def test_memory_does_not_grow_with_what_is_read(s3: S3, tmp_path: Path) -> None:
    """Separate processes read 100 MB of lines, and 100 MB of rows in one row group."""
    texts = ["x" * 1000 + str(number) for number in range(100_000)]
    table = pa.table({"text": texts})
    pq.write_table(table, tmp_path / "x.parquet", compression="none", use_dictionary=False, row_group_size=len(texts))
    root = uuid4().hex
    s3.write(f"{root}/x.jsonl", lines(*texts))
    s3.write(f"{root}/x.parquet", (tmp_path / "x.parquet").read_bytes())
    program = """if True:
        import sys
        from pathlib import Path
        from baton.tasks.data.source_spec import JsonlSource, ParquetSource
        from baton.tasks.data.sources import read_source

        def peak():  # kB
            return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

        reading = read_source({"jsonl": JsonlSource, "parquet": ParquetSource}[sys.argv[1]](path=sys.argv[2]))
        for _ in range(100):
            next(reading)
        before = peak()
        assert 100 + sum(len(raw.text) > 1000 for raw in reading) == 100_000
        print(peak() - before)"""
    for kind in ("jsonl", "parquet"):
        words = [sys.executable, "-c", program, kind, f"{s3.address}/{root}"]
        completed = subprocess.run(words, env=os.environ | s3.environment(), capture_output=True, text=True, check=True)
        assert int(completed.stdout) < 70_000, kind  # several buffers


def test_files_that_changed_are_noticed(bucket: Bucket) -> None:
    spec = CorpusSpec(source=JsonlSource(path=bucket.address))
    bucket.write("a.jsonl", lines("one"))
    first = spec.pinned()
    assert first.state == spec.pinned().state
    bucket.write("a.jsonl", lines("two"))  # the new file has the same size
    assert spec.pinned().state != first.state


def test_the_next_day_at_an_address_is_as_in_a_folder(bucket: Bucket, tmp_path: Path) -> None:
    """The day before was read from the folder, before it was moved to the bucket."""
    for number in range(40):
        bucket.write(f"{number:02}.txt", b"document %d" % number)
    specs = [
        {"source": {"kind": "files", "path": path}, "held_out": 0.3} for path in (str(bucket.here), bucket.address)
    ]
    job = new_job(tmp_path / "first", "corpus", specs[0])
    corpus_engine.work(job)
    bucket.write("03.txt", b"another text")
    bucket.write("40.txt", b"document 40")
    changed = new_job(tmp_path / "second", "increment", specs[1], known=[job.output])
    increment_engine.work(changed)
    changes = Changes.read(changed.output)
    assert [each.source for each in changes.edited] == ["03.txt"]
    found = {name for _, name in names_in(changed.output)}
    assert found == {"03.txt", "40.txt"}
    assert not (changes.renamed or changes.deleted)


def test_what_the_network_breaks_off_is_asked_for_again(bucket: Bucket, tmp_path: Path) -> None:
    texts = [str(number) * 1000 for number in range(1000)]
    bucket.write("x.jsonl", lines(*texts))
    with disturbed(bucket.server, faults := Faults()) as proxied, proxied.flyte(tmp_path):
        reading = read_source(JsonlSource(path=f"{bucket.address}/x.jsonl"))
        faults.refused, faults.cut = 3, 2
        assert [raw.text.decode() for raw in reading] == texts
    assert (faults.refused, faults.cut) == (0, 0)


def test_a_file_that_is_replaced_while_it_is_read_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mix of the old and the new file would be wrong."""
    monkeypatch.setattr(address, "BLOCK_BYTES", 4096)
    bucket.write("x.jsonl", lines(*(str(number) * 100 for number in range(1000))))
    reading = read_source(JsonlSource(path=bucket.address))
    next(reading)
    bucket.write("x.jsonl", lines(*(str(number + 1) * 100 for number in range(1000))))
    with pytest.raises(StorageError, match="was replaced while it was read"):
        list(reading)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("none", "there are none"),
        ("*.jsonl.gz", "there are none"),
        ("empty.jsonl", "at least one file with text"),
        ("damaged.jsonl", "line 1: not JSON"),
    ],
)
def test_what_an_address_lacks_is_said_before_anything_is_spent(bucket: Bucket, path: str, said: str) -> None:
    bucket.write("empty.jsonl", b"")
    bucket.write("damaged.jsonl", b"{")
    (problem,) = CorpusSpec(source=JsonlSource(path=f"{bucket.address}/{path}")).missing()
    assert problem.path == "source.path"
    assert said in problem.allowed
    assert not isinstance(problem, NotSeen)


def test_a_protocol_that_fsspec_does_not_have_is_named() -> None:
    (unknown,) = JsonlSource(path="s4://bucket/x").missing()
    assert "no access to s4://: Protocol not known: s4" in unknown.allowed
    (without,) = JsonlSource(path="dropbox://folder/x").missing()
    assert "install" in without.allowed and "dropboxdrivefs" in without.allowed


def test_no_credentials_are_said_at_once(tmp_path: Path) -> None:
    program = """if True:
        from baton.tasks.data.source_spec import JsonlSource
        print(JsonlSource(path="s3://bucket/x").missing())"""
    none = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FLYTE_"))} | none
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "no credentials for it here" in said.stdout and "FLYTE_AWS_ACCESS_KEY_ID" in said.stdout


def test_files_of_a_repository_on_the_hub_are_read_as_they_come(tmp_path: Path) -> None:
    """The Hub is a local server."""
    listed = [{"type": "file", "path": "data/a.jsonl", "size": len(lines("one", "two")), "oid": "5" * 40}]
    answers = {
        "api/datasets/o/n/index.html": json.dumps({"id": "o/n", "sha": "5" * 40}).encode(),
        "api/datasets/o/n/tree/main": json.dumps(listed).encode(),
        "datasets/o/n/resolve/main/data/a.jsonl": lines("one", "two"),
    }
    for name, answer in answers.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(answer)
    program = """if True:
        from baton.tasks.data.first_record import missing
        from baton.tasks.data.source_spec import JsonlSource
        from baton.tasks.data.sources import read_source
        source = JsonlSource(path="hf://datasets/o/n")
        print(missing(source), [(raw.source, raw.text) for raw in read_source(source)])"""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0"}
    words = [sys.executable, "-c", program]
    completed = subprocess.run(words, env=os.environ | hub, capture_output=True, text=True, check=False)
    server.shutdown()
    server.server_close()
    assert completed.stdout.strip() == "[] [('data/a.jsonl#1', b'one'), ('data/a.jsonl#2', b'two')]", completed.stderr


def test_a_tokenizer_is_brought_once(bucket: Bucket, tokenizer: Path, corpus: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        bucket.write(name, (tokenizer / name).read_bytes())
    bucket.write("model.safetensors", b"\0" * 1000)
    spec = TokenizerSpec(existing=bucket.address)
    assert spec.missing() == []
    assert spec.size() == 600
    assert (spec.pinned().state or "") != ""
    job = new_job(tmp_path / "job", "tokenizer", spec.model_dump(mode="json"), corpus=corpus)
    tokenizer_engine.work(job)
    (kept,) = (path for path in (tmp_path / "cache/brought").iterdir() if path.is_dir())
    assert {path.name for path in kept.iterdir()} == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert facts(job.output)["vocab_size"] == 600

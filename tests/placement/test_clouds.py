"""The storage of Azure and Google, tested with their emulators (Azurite, gcp-storage-emulator) by `make test-clouds`.

Other tests of storage use S3; these cover only behavior that may differ in another cloud's file system.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from baton.infra.storage import buckets as storage
from baton.infra.storage.address import fetch, find
from baton.infra.storage.buckets import StorageError
from tests.core.test_offsite import checkpoint, pod, send

pytestmark = pytest.mark.slow

PROGRAMS = Path(sys.prefix) / "clouds"  # installed by `make test-clouds`
BUCKET = "baton"
LARGE = os.urandom(40 << 20)  # more than two parts
# Azurite's fixed account: learn.microsoft.com/azure/storage/common/storage-connect-azurite
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(scope="module")
def port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module", params=["az", "gs"])
def cloud(request: pytest.FixtureRequest, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a bucket."""
    folder = tmp_path_factory.mktemp(request.param)
    azure = [PROGRAMS / "node_modules/.bin/azurite-blob", "--location", folder, "--blobHost", "127.0.0.1"]
    google = [PROGRAMS / "bin/gcp-storage-emulator", "start", "--in-memory", "--default-bucket", BUCKET]
    words = {
        "az": [*azure, "--blobPort", str(port), "--skipApiVersionCheck"],
        "gs": [*google, "--host", "127.0.0.1", "--port", str(port)],
    }[request.param]
    endpoint = f"http://127.0.0.1:{port}"
    account = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint}/{ACCOUNT};"
    with pytest.MonkeyPatch.context() as patch, (folder / "log.txt").open("w") as log:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"DefaultEndpointsProtocol=http;{account}")
        patch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        process = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log)
        try:
            while True:
                assert process.poll() is None, (folder / "log.txt").read_text()
                with closing(socket.socket()) as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            if request.param == "az":
                storage.file_system("az://").mkdir(BUCKET)
            yield f"{request.param}://{BUCKET}"
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def where(cloud: str) -> str:
    return f"{cloud}/{uuid4().hex}"


@pytest.fixture
def sent(where: str, tmp_path: Path) -> str:
    """The address of a folder with three files."""
    files = {"a.txt": b"one", "sub/large.bin": LARGE, "empty": b""}
    for name, content in files.items():
        path = tmp_path / "sent" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    storage.put(tmp_path / "sent", files, where)
    return where


def test_what_is_sent_is_there_and_comes_back(sent: str, tmp_path: Path) -> None:
    sizes = storage.sizes(sent)
    assert sizes == {"a.txt": 3, "sub/large.bin": len(LARGE), "empty": 0}
    storage.get(sent, sizes, tmp_path / "back")
    assert (tmp_path / "back/sub/large.bin").read_bytes() == LARGE


def test_what_is_not_there_is_nothing(where: str, tmp_path: Path) -> None:
    assert storage.sizes(where) == {} and find(where) == []
    with pytest.raises(FileNotFoundError):
        storage.read(f"{where}/note")
    with pytest.raises(FileNotFoundError):
        storage.get(where, {"note": 1}, tmp_path / "back")


def test_a_note_is_replaced(where: str) -> None:
    storage.write(f"{where}/note", b"1")
    storage.write(f"{where}/note", b"2")
    assert storage.read(f"{where}/note") == b"2"


def test_what_is_deleted_is_gone_and_may_be_gone_already(sent: str) -> None:
    storage.delete(sent, ["a.txt", "none"])
    assert sorted(storage.sizes(sent)) == ["empty", "sub/large.bin"]


def test_a_file_at_an_address_is_a_stream(sent: str) -> None:
    (file,) = find(f"{sent}/**/*.bin")
    assert file.version
    with file.open() as stream:
        stream.seek(1000)
        assert stream.read(100) == LARGE[1000:1100]
        stream.seek(0)
        assert stream.read() == LARGE


def test_a_folder_is_brought(sent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    assert sorted(path.name for path in fetch(sent).iterdir()) == ["a.txt", "empty"]


def test_a_fresh_pod_continues_from_the_newest_checkpoint(where: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    checkpoint(first, 5)
    send(first)
    second.resume()
    assert [path.name for path in (second.job_dir / "work/checkpoints").iterdir()] == ["step-00000005"]


def test_a_bucket_that_is_not_there_is_reported(cloud: str, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(StorageError, match="Create the bucket, or set another one in BATON_STORAGE"):
        storage.put(tmp_path, ["a"], f"{cloud}-none/x")

"""A real registry on loopback, from Debian's package docker-registry. Images are pushed to it without Docker."""

import hashlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

PROGRAM = shutil.which("docker-registry")
needs_registry = pytest.mark.skipif(
    PROGRAM is None, reason="NOT RUN: needs docker-registry (apt-get install docker-registry)"
)
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@contextmanager
def registry(folder: Path, auth: dict[str, Any] | None = None) -> Iterator[str]:
    """Run a registry; yields its HOST:PORT."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": host},
        **({"auth": auth} if auth else {}),
    }
    (folder / "registry.yaml").write_text(yaml.safe_dump(config))
    words = [str(PROGRAM), "serve", str(folder / "registry.yaml")]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(300):
                try:
                    requests.get(f"http://{host}/v2/", timeout=5)
                    break
                except requests.ConnectionError:
                    time.sleep(0.1)
            yield host
        finally:
            process.kill()


def push(host: str, name: str, tag: str, auth: tuple[str, str] | None = None, token: str = "") -> str:
    """Push an image without layers; returns its digest."""
    with requests.Session() as session:
        session.auth = auth
        session.headers.update({"Authorization": f"Bearer {token}"} if token else {})
        content = json.dumps(
            {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}
        ).encode()
        started = session.post(f"http://{host}/v2/{name}/blobs/uploads/", timeout=10)
        started.raise_for_status()
        to = started.headers["Location"]
        session.put(to, params={"digest": _digest(content)}, data=content, timeout=10).raise_for_status()
        config = {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": _digest(content),
            "size": len(content),
        }
        manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []}).encode()
        where = f"http://{host}/v2/{name}/manifests/{tag}"
        session.put(where, data=manifest, headers={"Content-Type": MANIFEST}, timeout=10).raise_for_status()
    return _digest(manifest)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"

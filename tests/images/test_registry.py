"""Digests from a real registry: without authentication, with a password, and with a token."""

import base64
import datetime
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from baton import images
from baton.infra.image_registry import RegistryError, absent, digest_of
from tests.images.registry import needs_registry, push, registry
from tests.source import ROOT

USER, PASSWORD = "baton", "s3cret"
BCRYPT = "$2b$04$ip7i2WQDkAQHWdR1.OP7DeCIL.U69WAypUTh8NRc2O6vlDcq3mOhS"  # hash of the password


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("open")) as host:
        yield host


def login(home: Path, host: str, monkeypatch: pytest.MonkeyPatch, **credentials: str) -> None:
    """Write the file that `docker login` writes."""
    home.joinpath("config.json").write_text(json.dumps({"auths": {host: credentials}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(home))


def by_password(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@needs_registry
def test_a_digest_is_the_registry_s(host: str) -> None:
    pushed = push(host, "team/baton-data", "1")
    assert digest_of(f"{host}/team/baton-data:1") == pushed


@needs_registry
def test_an_image_that_is_not_there(host: str) -> None:
    push(host, "there", "1")
    assert digest_of(f"{host}/there:2") is None and digest_of(f"{host}/nowhere:1") is None


@needs_registry
def test_the_default_tag_is_latest(host: str) -> None:
    assert digest_of(f"{host}/tagged") is None
    pushed = push(host, "tagged", "latest")
    assert digest_of(f"{host}/tagged") == pushed


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(RegistryError, match=r"-a\.b/c:1: .*An image's name is \[HOST\[:PORT\]/\]PATH\[:TAG\]"):
        digest_of("-a.b/c:1")


@needs_registry
def test_a_pinned_image_that_is_missing_is_distinguished_from_one_that_cannot_be_looked_up(host: str) -> None:
    pinned = f"{host}/pinned@{push(host, 'pinned', '1')}"
    gone = f"{host}/pinned@sha256:{64 * '7'}"
    assert digest_of(pinned) == pinned.partition("@")[2]
    assert absent([pinned, gone, f"127.0.0.1:9/unreachable@sha256:{64 * '7'}"]) == [gone]


@needs_registry
def test_a_private_registry_by_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"{USER}:{BCRYPT}\n")
    with registry(tmp_path, {"htpasswd": {"realm": "baton", "path": str(passwords)}}) as host:
        pushed = push(host, "private", "1", auth=(USER, PASSWORD))
        with pytest.raises(RegistryError, match=f"refuses access.*docker login {host}"):
            digest_of(f"{host}/private:1")
        login(tmp_path, host, monkeypatch, **by_password(USER, PASSWORD))
        assert digest_of(f"{host}/private:1") == pushed
        login(tmp_path, host, monkeypatch, **by_password(USER, "wrong"))
        with pytest.raises(RegistryError, match="refuses access") as raised:
            digest_of(f"{host}/private:1")
        assert "wrong" not in str(raised.value)


@needs_registry
@pytest.mark.parametrize("kind", ["password", "identity token"])
def test_a_private_registry_by_token(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker Hub, GitHub and Azure exchange credentials for a token at another address."""
    tokens = Tokens(tmp_path)
    threading.Thread(target=tokens.serve_forever, daemon=True).start()
    realm = f"http://127.0.0.1:{tokens.server_port}/token"
    auth = {"realm": realm, "service": "registry", "issuer": "tests", "rootcertbundle": str(tmp_path / "root.pem")}
    try:
        with registry(tmp_path, {"token": auth}) as host:
            pushed = push(host, "private", "1", token=tokens.token("repository:private:push,pull"))
            with pytest.raises(RegistryError, match="refuses access"):
                digest_of(f"{host}/private:1")
            given = by_password(USER, PASSWORD) if kind == "password" else {"identitytoken": PASSWORD, "auth": ""}
            login(tmp_path, host, monkeypatch, **given)
            assert digest_of(f"{host}/private:1") == pushed
    finally:
        tokens.shutdown()


class Tokens(HTTPServer):
    """A token server that follows the registry's specification."""

    def __init__(self, folder: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name, now = x509.Name([]), datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder(name, name, self.key.public_key(), 1, now, now + datetime.timedelta(hours=1))
        self.certificate = made.sign(self.key, hashes.SHA256())
        (folder / "root.pem").write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        super().__init__(("127.0.0.1", 0), _Token)

    def token(self, scope: str) -> str:
        import jwt
        from cryptography.hazmat.primitives import serialization

        kind, name, actions = scope.split(":")
        now = int(datetime.datetime.now(datetime.UTC).timestamp())
        access = [{"type": kind, "name": name, "actions": actions.split(",")}]
        claims: dict[str, Any] = {"iss": "tests", "aud": "registry", "sub": USER, "access": access}
        claims |= {"iat": now, "nbf": now - 5, "exp": now + 60, "jti": "1"}
        der = self.certificate.public_bytes(serialization.Encoding.DER)
        return jwt.encode(claims, self.key, "RS256", headers={"x5c": [base64.b64encode(der).decode()]})


class _Token(BaseHTTPRequestHandler):
    server: Tokens

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        good = self.headers.get("Authorization") == f"Basic {by_password(USER, PASSWORD)['auth']}"
        self.answer(good, asked["scope"][0])

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.answer(asked["refresh_token"] == [PASSWORD], asked["scope"][0])

    def answer(self, good: bool, scope: str) -> None:
        content = json.dumps({"token": self.server.token(scope)} if good else {"errors": []}).encode()
        self.send_response(200 if good else 401)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        pass


class _Table(BaseHTTPRequestHandler):
    """A registry that returns buildx's table instead of a digest."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Docker-Content-Digest", "Name: team/baton-data")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


def test_only_a_digest_is_one() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Table)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(RegistryError, match="answers with 200 and the digest 'Name: team"):
            digest_of(f"127.0.0.1:{server.server_port}/baton-data:1")
    finally:
        server.shutdown()


# `baton images` with that registry


def build(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "baton", "images", *words]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=os.environ | environment)


def has(host: str, family: str, **fields: str) -> str:
    """Push an image of a family under the name that Flyte computes; returns its digest."""
    image = replace(images.BY_FAMILY[family], registry=f"{host}/team", **fields)
    return push(host, f"team/{image.name}", image.tag)


@needs_registry
def test_images_that_are_there_are_pinned_without_docker(host: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    digests = {f"baton-{family}": has(host, family) for family in ("data", "train")}
    ended = build(f"{host}/team", "data", "train", "--config", str(config), PATH="/nowhere")
    assert ended.returncode == 0, ended.stderr
    assert yaml.safe_load(config.read_text())["images"] == {
        name: f"{host}/team/{name}@{digest}" for name, digest in digests.items()
    }


@needs_registry
@pytest.mark.parametrize(
    ("docker", "said"),
    [
        ("", "docker: cannot be started"),
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "docker build: exit code 1; see above"),
        ('[ "$1" = build ] || exit 3', "docker push: exit code 3; see above"),
        ("exit 0", "was pushed, but its registry does not have it"),
    ],
)
def test_an_image_that_cannot_be_made(docker: str, said: str, host: str, tmp_path: Path) -> None:
    if docker:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{docker}\n")
        (tmp_path / "docker").chmod(0o755)
    config = tmp_path / "config.yaml"
    ended = build(f"{host}/absent", "train", "--config", str(config), PATH=f"{tmp_path}")
    assert ended.returncode == 1 and said in ended.stderr
    assert "Traceback" not in ended.stderr and not config.exists()


@needs_registry
def test_another_base_is_another_image(host: str, tmp_path: Path) -> None:
    pushed = has(host, "serve", base_image="corp/python:3.12")
    ended = build(
        f"{host}/team", "serve", "--config", str(tmp_path / "c"), "--base", "corp/python:3.12", PATH="/nowhere"
    )
    assert pushed in ended.stdout
    assert build(f"{host}/team", "serve", "--config", str(tmp_path / "c"), PATH="/nowhere").returncode == 1


@needs_registry
def test_an_index_s_password_gets_into_no_image(host: str, tmp_path: Path) -> None:
    ended = build(
        f"{host}/absent", "train", "--config", str(tmp_path / "c"), PIP_INDEX_URL="https://me:hush@pypi.corp/simple"
    )
    assert ended.returncode == 1 and "PIP_INDEX_URL: has credentials" in ended.stderr and "hush" not in ended.stderr


def test_a_registry_without_a_slash_is_asked_and_no_public_hub() -> None:
    ended = build("localhost:1", "data")
    assert ended.returncode == 1 and "localhost:1 does not answer" in ended.stderr
    assert "Traceback" not in ended.stderr

"""An image's digest, from its registry: by the OCI distribution API, with the credentials of `docker login`.

Needs neither a Docker daemon nor buildx, whose `imagetools inspect` prints a table where a digest is asked for
(docker/buildx#1175).
"""

import re
from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import parse_http_list, parse_keqv_list

from baton.infra.errors import UserError
from baton.infra.text import clause

if TYPE_CHECKING:
    from requests import Response, Session

DIGEST = re.compile("sha256:[0-9a-f]{64}")
HUB = "registry-1.docker.io"  # registry of images whose name has none
LOOPBACK = re.compile(r"(localhost|127(\.\d+){3})(:\d+)?")
ANSWER_S = (5, 30)  # to connect, and for each part of the answer
MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)


class RegistryError(UserError):
    """An image's registry does not say which digest it has."""


def digest_of(image: str) -> str | None:
    """Return the digest of NAME[:TAG] or NAME@DIGEST, or None if its registry has no such image. Raises
    RegistryError."""
    import requests
    from docker.auth import load_config, resolve_repository_name
    from docker.errors import InvalidRepository
    from docker.utils import parse_repository_tag

    name, tag = parse_repository_tag(image)
    tag = tag or "latest"
    try:
        registry, repository = resolve_repository_name(name)
    except InvalidRepository as error:
        raise RegistryError(f"{image}: {clause(error)}. An image's name is [HOST[:PORT]/]PATH[:TAG]") from error
    if registry == "docker.io" and "/" not in repository:
        repository = f"library/{repository}"
    host = HUB if registry == "docker.io" else registry
    url = f"{'http' if LOOPBACK.fullmatch(host) else 'https'}://{host}/v2/{repository}/manifests/{tag}"
    auth = load_config().resolve_authconfig(registry) or {}
    credentials = {key.lower(): value for key, value in auth.items()}  # capital letters from credential helpers alone
    try:
        with requests.Session() as session:
            answer = _asked(session, url, {})
            if answer.status_code == 401:
                answer = _asked(session, url, _authorization(session, answer, repository, credentials))
    except requests.RequestException as error:
        raise _refused(image, f"{registry} does not answer ({_reason(error)})", registry) from error
    if answer.status_code == 404:
        return None
    if answer.status_code in (401, 403):
        raise _refused(image, f"{registry} refuses access", registry)
    digest = answer.headers.get("Docker-Content-Digest", "")
    if answer.status_code != 200 or not DIGEST.fullmatch(digest):
        raise _refused(image, f"{registry} answers with {answer.status_code} and the digest {digest[:80]!r}", registry)
    return digest


def absent(images: Iterable[str]) -> list[str]:
    """Return the images that their registry reports as missing. A registry that does not answer here may answer the
    nodes, so that its images are not reported, and it is not queried again."""
    found = []
    with suppress(RegistryError):
        for image in images:
            found += [image] if digest_of(image) is None else []
    return found


def _asked(session: "Session", url: str, headers: dict[str, str]) -> "Response":
    return session.head(url, headers={"Accept": MANIFESTS, **headers}, timeout=ANSWER_S, allow_redirects=True)


def _authorization(
    session: "Session", refusal: "Response", repository: str, credentials: dict[str, str]
) -> dict[str, str]:
    """The header that a 401 demands: the credentials themselves, or a token that they are exchanged for."""
    from requests.exceptions import InvalidURL

    scheme, _, words = refusal.headers.get("WWW-Authenticate", "").partition(" ")
    user, password = credentials.get("username"), credentials.get("password")
    basic = {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"} if user and password else {}
    if scheme.lower() != "bearer":
        return basic
    asked = parse_keqv_list(parse_http_list(words))
    expected = {"service": asked.get("service", ""), "scope": f"repository:{repository}:pull"}
    realm = asked.get("realm", "")
    if urlsplit(realm).scheme != "https" and urlsplit(refusal.url).scheme == "https":
        raise InvalidURL(f"its realm for tokens, {realm}, is not HTTPS")
    if refresh := credentials.get("identitytoken"):
        form = {**expected, "grant_type": "refresh_token", "client_id": "baton", "refresh_token": refresh}
        answer = session.post(realm, data=form, timeout=ANSWER_S)
    else:
        answer = session.get(realm, params=expected, headers=basic, timeout=ANSWER_S)
    body = answer.json() if answer.status_code == 200 else {}
    token = body.get("token") or body.get("access_token")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _reason(error: Exception) -> str:
    """The innermost reason of requests' nested exceptions, without the address, which may hold credentials."""
    while error.__context__ is not None and error.__context__ is not error:
        error = error.__context__  # type: ignore[assignment]
    return str(error) or type(error).__name__


def _refused(image: str, reason: str, registry: str) -> RegistryError:
    return RegistryError(
        f"{image}: {reason}. Start the registry or correct its name (HOST[:PORT]/PATH; without TLS only on localhost); "
        f"for a private one: docker login {registry}"
    )

"""Access to a server: the paths of its API, with the key in VLLM_API_KEY.

vLLM (0.27 and 0.31) registers more paths than OpenAI's API and checks its key on some of them only: /invocations runs
chats and completions without one. So the proxy forwards only the paths of an allow-list, and each vLLM server, which
listens on a port of this machine, gets a separate key, without which it answers nothing (`Guard`).
"""

import hmac
import os
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from baton.tasks.core.job import StageError

KEY = "VLLM_API_KEY"
MIDDLEWARE = f"{__name__}.Guard"
# Without escapes, dot segments and empty segments, every program reads the same path
_API = re.compile(r"(?:/health|/v1(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)+)(?:\?[!-~]*)?")

Message = MutableMapping[str, Any]


def api_key() -> str:
    """Return the key that clients must send; empty if none. Raises StageError."""
    key = os.environ.get(KEY, "")
    if key != key.strip() or not key.isprintable():
        raise StageError(
            f"{KEY} begins or ends with whitespace or contains control characters, which no HTTP header can carry; set "
            f"it again, for example: export {KEY}=$(openssl rand -hex 32)"
        )
    return key


def is_api(target: str) -> bool:
    """Return whether a request's target, as received, is a path of the server's API."""
    return _API.fullmatch(target) is not None


def may_pass(authorization: str, key: str) -> bool:
    """Return whether an Authorization header has the key, compared in constant time."""
    scheme, _, sent = authorization.partition(" ")
    same = hmac.compare_digest(sent.encode(errors="surrogateescape"), key.encode(errors="surrogateescape"))
    return same and scheme.lower() == "bearer"


def authorization(key: str) -> dict[str, str]:
    """Return the header that `may_pass` accepts."""
    return {"authorization": f"Bearer {key}"}


class Guard:
    """ASGI middleware of vLLM's server: answers 401 to every request without the key."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app, self.key = app, api_key()

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        sent = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "lifespan" or may_pass(sent.decode(errors="surrogateescape"), self.key):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # not accepted yet, so uvicorn answers 403
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

"""Messages of vLLM's server with a way out: a request for another model is answered with the names of the served ones,
and a chat with a model that has no chat template with what to do instead.

vLLM (0.27 and 0.31) says of the one only that the model does not exist, and of the other what Transformers no longer
allows. The middleware of its server completes the messages, so they are the same with and without the proxy.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import httpx

MIDDLEWARE = f"{__name__}.Explained"
EXPLAINED = (400, 404)  # statuses of responses with such messages
NO_TEMPLATE = "you must provide a chat template"  # in vLLM's message
NO_CHAT = (
    "This model has no chat template, so it cannot chat. Send it a prompt instead (baton chat --completion, or POST "
    "/v1/completions), or give it a template: post-training, such as sft, adds one to a model that has none"
)

Message = MutableMapping[str, Any]


def is_unknown_model(error: dict[str, Any]) -> bool:
    """Return whether an error of OpenAI's API is about a model that is not served."""
    return error.get("type") == "NotFoundError" and error.get("param") == "model"


def explained(error: dict[str, Any], served: Iterable[str] = ()) -> str:
    """Return the message of an error of OpenAI's API with a way out, where one is known."""
    message = str(error.get("message", ""))
    if is_unknown_model(error):
        return f"{message} {serves(served)}"
    return NO_CHAT if NO_TEMPLATE in message else message


def serves(names: Iterable[str]) -> str:
    """Return a sentence with the names of the models of a server."""
    return f"This server has {' and '.join(f'`{name}`' for name in names) or 'no model'}"


class Explained:
    """ASGI middleware of vLLM's server."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        start: Message | None = None  # of a response that may need an explanation
        body = b""

        async def pass_on(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and message["status"] in EXPLAINED:
                start = message
            elif start is None or message["type"] != "http.response.body":
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body"):
                    content = await _explained_body(scope, body)
                    headers = [header for header in start["headers"] if header[0].lower() != b"content-length"]
                    await send({**start, "headers": [*headers, (b"content-length", str(len(content)).encode())]})
                    await send({"type": "http.response.body", "body": content})

        await self.app(scope, receive, pass_on)


async def _explained_body(scope: Message, body: bytes) -> bytes:
    try:
        answer = json.loads(body)
        error = dict(answer["error"])
    except (ValueError, TypeError, KeyError):  # not an error of the API
        return body
    served = await _served(scope) if is_unknown_model(error) else []
    return json.dumps(answer | {"error": error | {"message": explained(error, served)}}).encode()


async def _served(scope: Message) -> list[str]:
    """Ask the application itself for its models, with the key of the request."""
    authorization = dict(scope["headers"]).get(b"authorization", b"")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=scope["app"]), base_url="http://server") as client:
        listed = await client.get("/v1/models", headers=[(b"authorization", authorization)])
    return [str(model["id"]) for model in listed.json()["data"]]

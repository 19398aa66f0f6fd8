"""A server with the parts of OpenAI's API that the proxy and the smoke test need, ready in a second. It accepts
vLLM's arguments and responds with its model's digest. The file `behaviour` in the model's directory makes it
misbehave.

python -m tests.serve.small_server --model DIR --tokenizer DIR --served-model-name DIGEST NAME --host HOST …
"""

import argparse
import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from baton.infra.process.parent_watchdog import end_with_launcher
from baton.tasks.serve.explained import Explained

PART_S = 0.02  # the time between two parts of a streamed response


def app(digest: str, name: str, behaviour: str = "", tokenizer: Tokenizer | None = None) -> Starlette:
    async def health(request: Request) -> Response:
        return Response(status_code=503 if behaviour == "never healthy" else 200)

    async def models(request: Request) -> Response:
        listed = [{"id": each, "object": "model", "root": "folder"} for each in (digest, name)]
        return JSONResponse({"object": "list", "data": listed})

    async def completions(request: Request) -> Response:
        asked: dict[str, Any] = await request.json()
        if asked["model"] not in (digest, name, ""):
            return _unknown(asked["model"])
        if behaviour == "answers wrongly":
            return JSONResponse({"error": {"message": "Out of range float values are not JSON compliant"}}, 500)
        tokens = asked.get("max_tokens") or 8
        if asked.get("stream"):
            return StreamingResponse(_parts(digest, tokens), media_type="text/event-stream")
        for _ in range(tokens):
            await asyncio.sleep(PART_S)
            if await request.is_disconnected():  # as vLLM does
                return Response()
        choice = {"index": 0, "text": "x" * tokens, "logprobs": {"token_logprobs": [-1.0] * tokens}}
        ids = tokenizer.encode(asked["prompt"]).ids if tokenizer else []
        choice |= {"prompt_token_ids": [*ids, 0] if behaviour == "tokenizes otherwise" else ids}
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 1 + tokens}
        told = {"id": "c", "object": "text_completion", "created": 0, "model": digest}
        if not asked["model"] and behaviour == "answers with its base":
            told["model"] = f"base-of-{digest}"
        return JSONResponse(told | {"choices": [choice], "usage": usage})

    async def chat(request: Request) -> Response:
        asked: dict[str, Any] = await request.json()
        if asked["model"] not in (digest, name):
            return _unknown(asked["model"])
        if behaviour == "has no template":
            message = (
                "As of transformers v4.44, … you must provide a chat template if the tokenizer does not define one."
            )
            return JSONResponse({"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400)
        if not asked.get("stream"):
            usage = {"prompt_tokens": 1, "completion_tokens": asked["max_tokens"], "total_tokens": 2}
            choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}
            told = {"id": "c", "object": "chat.completion", "created": 0, "model": digest}
            return JSONResponse(told | {"choices": [choice], "usage": usage})
        return StreamingResponse(_turn(digest, asked), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        middleware=[Middleware(Explained)],
    )


def _unknown(model: str) -> JSONResponse:
    """Return vLLM's response to a request for a model that is not served."""
    message = f"The model `{model}` does not exist."
    return JSONResponse({"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}}, 404)


async def _turn(digest: str, asked: dict[str, Any]) -> AsyncIterator[str]:
    """Answer a chat word by word: with its last message, or with all of the request ("everything"), without an end
    ("forever"), or with what a terminal and a page would obey ("hostile")."""
    text = str(asked["messages"][-1]["content"])
    answers = {
        "everything": json.dumps({name: value for name, value in asked.items() if name not in ("model", "stream")}),
        "hostile": "\x1b[2J\x1b]0;title\x07<img src=x onerror=alert(1)><script>alert(2)</script>\r\u202eabc\x9b31m",
    }
    words = answers.get(text, f"You said {text}").split(" ")
    parts = (f"word{number}" for number in itertools.count()) if text == "forever" else iter(words)
    number = 0
    for number, part in enumerate(parts):
        await asyncio.sleep(PART_S)
        yield _event(digest, {"content": part if number == 0 else f" {part}"}, None)
        if asked.get("max_tokens") and number + 1 >= asked["max_tokens"] and text != "forever":
            break
    yield _event(digest, {}, "length" if number + 1 == asked.get("max_tokens") else "stop")
    yield "data: [DONE]\n\n"


def _event(digest: str, delta: dict[str, str], reason: str | None) -> str:
    told = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": digest}
    return f"data: {json.dumps(told | {'choices': [{'index': 0, 'delta': delta, 'finish_reason': reason}]})}\n\n"


async def _parts(digest: str, tokens: int) -> AsyncIterator[str]:
    for number in range(tokens):
        await asyncio.sleep(PART_S)
        yield f"data: {json.dumps({'model': digest, 'choices': [{'index': 0, 'text': str(number)}]})}\n\n"
    yield "data: [DONE]\n\n"


def main() -> None:
    end_with_launcher(1.0)
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--served-model-name", nargs=2)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    words = parser.parse_known_args()[0]
    behaviour = words.model / "behaviour"
    said = behaviour.read_text() if behaviour.exists() else ""
    if said == "dies":
        raise SystemExit("the weights cannot be read")
    digest, name = words.served_model_name
    tokenizer = Tokenizer.from_file(str(words.tokenizer / "tokenizer.json"))
    uvicorn.run(app(digest, name, said, tokenizer), host=words.host, port=words.port, log_level="warning")


if __name__ == "__main__":
    main()

"""A server with the parts of OpenAI's API that the proxy and the smoke test need, ready in a second. It accepts
vLLM's arguments and responds with its model's digest. The file `behaviour` in the model's directory makes it
misbehave.

python -m tests.serve.small_server --model DIR --tokenizer DIR --served-model-name DIGEST NAME --host HOST …
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from baton.infra.process.parent_watchdog import end_with_launcher

PART_S = 0.02  # the time between two parts of a streamed response


def app(digest: str, name: str, behaviour: str = "", tokenizer: Tokenizer | None = None) -> Starlette:
    async def health(request: Request) -> Response:
        return Response(status_code=503 if behaviour == "never healthy" else 200)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": each, "object": "model"} for each in (digest, name)]})

    async def completions(request: Request) -> Response:
        asked: dict[str, Any] = await request.json()
        if asked["model"] not in (digest, name, ""):
            return JSONResponse({"error": {"message": f"no model {asked['model']}"}}, 404)
        if behaviour == "answers wrongly":
            return JSONResponse({"error": {"message": "Out of range float values are not JSON compliant"}}, 500)
        tokens = asked.get("max_tokens", 8)
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

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/completions", completions, methods=["POST"]),
        ]
    )


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

"""Messages with a way out, of servers that answer as vLLM does; test_vllm.py has a real one."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from baton.tasks.serve.explained import NO_CHAT, NO_TEMPLATE, Explained
from tests.serve.small_server import app
from tests.serve.test_proxy import running

DIGEST = "aa" * 32
BODIES = {
    "text": b"no JSON",
    "list": b"[1]",
    "detail": b'{"detail": "Not Found"}',
    "words": b'{"error": "Not Found"}',
    "other": b'{"error":{"message":"too large","type":"BadRequestError","param":"max_tokens","code":400}}',
}


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    with running(app(DIGEST, "coder")) as one, running(app(DIGEST, "coder", "has no template")) as plain:
        yield one, plain


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_another_model_is_answered_with_the_names_of_those_served(urls: tuple[str, str], path: str) -> None:
    answer = httpx.post(f"{urls[0]}/v1/{path}", json={"model": "nobody", "messages": [], "prompt": ""})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, 404, "model")
    assert error["message"] == f"The model `nobody` does not exist. This server has `{DIGEST}` and `coder`"


def test_a_chat_without_a_template_is_answered_with_what_to_do(urls: tuple[str, str]) -> None:
    answer = httpx.post(f"{urls[1]}/v1/chat/completions", json={"model": "coder", "messages": [{"content": "hi"}]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, NO_CHAT)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("status", [400, 404])
def test_other_errors_pass_as_they_are(name: str, status: int) -> None:
    async def answer(request: Request) -> Response:
        return Response(BODIES[name], status, {"x-other": "kept"}, "application/json")

    with running(Starlette(routes=[Route("/", answer)], middleware=[Middleware(Explained)])) as url:
        got = httpx.get(url)
    assert (got.status_code, got.headers["x-other"]) == (status, "kept")
    expected = httpx.Response(status, content=BODIES[name])
    assert got.json() == expected.json() if name == "other" else got.content == BODIES[name]


def test_an_answer_in_parts_is_not_held_back() -> None:
    async def answer(request: Request) -> Response:
        if request.query_params.get("fails"):
            return StreamingResponse(iter([b'{"error": {"message": "', b'cut"}}']), 400)
        return JSONResponse({"error": {"type": "NotFoundError", "param": "model"}})

    with running(Starlette(routes=[Route("/", answer)], middleware=[Middleware(Explained)])) as url:
        assert httpx.get(f"{url}?fails=1").json()["error"]["message"] == "cut"
        assert httpx.get(url).json() == {"error": {"type": "NotFoundError", "param": "model"}}


def test_vllm_has_these_messages() -> None:
    """Once vLLM names the models and says what to do, remove `Explained`."""
    modules = {"hf.py": "vllm.renderers.hf", "serving.py": "vllm.entrypoints.openai.models.serving"}
    found = {name: Path(str(spec.origin)).read_text() for name, each in modules.items() if (spec := find_spec(each))}
    message = found["hf.py"].replace('"\n            "', "")
    assert NO_TEMPLATE in message
    assert '` does not exist.",' in found["serving.py"] and 'err_type="NotFoundError"' in found["serving.py"]

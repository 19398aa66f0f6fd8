"""Smoke-test a server: is it the right model, and does it respond? Uses OpenAI's client."""

import math
import os
from dataclasses import dataclass

import openai

from tasks.serve.server import Served, ServerFailed

TOKENS = 8
TIMEOUT_S = 120.0  # the first request of a large model compiles


@dataclass(frozen=True)
class Answers:
    """The model's responses; `chat` is None if it has no chat template."""

    completion: str
    chat: str | None


def api_key() -> str:
    """The API key that vLLM's server requires if VLLM_API_KEY is set."""
    return os.environ.get("VLLM_API_KEY") or "none"


def smoke_test(url: str, model: Served) -> Answers:
    """Request a completion and a chat. Raises ServerFailed unless the server lists the model's digest and name, and
    each response has the digest, the requested number of tokens, and finite log-probabilities."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=api_key(), max_retries=0, timeout=TIMEOUT_S)
    try:
        listed = {listed_model.id for listed_model in client.models.list()}
        _check(url, {model.digest, model.name} <= listed, f"/v1/models lists {sorted(listed)}, not {model.digest}")
        completion = client.completions.create(
            model=model.digest, prompt="def", max_tokens=TOKENS, logprobs=1, extra_body={"ignore_eos": True}
        )
        _check_answer(url, model, completion.model, completion.usage)
        logprobs = completion.choices[0].logprobs
        numbers = (logprobs.token_logprobs if logprobs else None) or []
        finite = len(numbers) == TOKENS and all(number is not None and math.isfinite(number) for number in numbers)
        _check(url, finite, f"the log-probabilities of a completion are {numbers}")
        return Answers(completion.choices[0].text, _chat(client, url, model) if model.chats else None)
    except openai.OpenAIError as error:  # includes httpx's errors and error status codes
        raise ServerFailed(f"{url} fails its smoke test: {type(error).__name__}: {str(error)[:500]}") from error


def _chat(client: openai.OpenAI, url: str, model: Served) -> str:
    answer = client.chat.completions.create(
        model=model.name,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=TOKENS,
        extra_body={"ignore_eos": True},
    )
    _check_answer(url, model, answer.model, answer.usage)
    return answer.choices[0].message.content or ""


def _check_answer(url: str, model: Served, digest: str, usage: object) -> None:
    # vLLM names an adapter's responses as they were requested, a whole model's by its first name
    names = {model.digest, model.name} if model.files.adapter else {model.digest}
    _check(url, digest in names, f"a response is from {digest}, not {model.digest}")
    tokens = getattr(usage, "completion_tokens", None)
    _check(url, tokens == TOKENS, f"a response has {tokens} tokens instead of {TOKENS}")


def _check(url: str, passed: bool, message: str) -> None:
    if not passed:
        raise ServerFailed(f"{url} fails its smoke test: {message}")

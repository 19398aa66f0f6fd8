"""Is it the right model, and does it answer? A completion and a chat, through OpenAI's own client."""

import math
import os
from dataclasses import dataclass

import openai

from tasks.serve.server import Served, ServerFailed

TOKENS = 8
PATIENCE_S = 120.0  # the first request of a large model compiles


@dataclass(frozen=True)
class Answers:
    """What the model said; the chat is None where it has no chat template."""

    completion: str
    chat: str | None


def api_key() -> str:
    """What vLLM's server asks of its clients when VLLM_API_KEY is set."""
    return os.environ.get("VLLM_API_KEY") or "none"


def smoke_test(url: str, model: Served) -> Answers:
    """Raises ServerFailed unless the server lists the model's digest and name, and each answer bears the
    digest, has as many tokens as were asked for, and probabilities that are numbers."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=api_key(), max_retries=0, timeout=PATIENCE_S)
    try:
        listed = {each.id for each in client.models.list()}
        _check(url, {model.digest, model.name} <= listed, f"/v1/models lists {sorted(listed)}, not {model.digest}")
        completion = client.completions.create(
            model=model.digest, prompt="def", max_tokens=TOKENS, logprobs=1, extra_body={"ignore_eos": True}
        )
        _check_answer(url, model, completion.model, completion.usage)
        logprobs = completion.choices[0].logprobs
        numbers = (logprobs.token_logprobs if logprobs else None) or []
        sound = len(numbers) == TOKENS and all(number is not None and math.isfinite(number) for number in numbers)
        _check(url, sound, f"the log probabilities of a completion are {numbers}")
        return Answers(completion.choices[0].text, _chat(client, url, model) if model.chats else None)
    except openai.OpenAIError as error:  # httpx's errors and wrong status codes among them
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


def _check_answer(url: str, model: Served, answered: str, usage: object) -> None:
    _check(url, answered == model.digest, f"an answer is of {answered}, not of {model.digest}")
    tokens = getattr(usage, "completion_tokens", None)
    _check(url, tokens == TOKENS, f"an answer has {tokens} tokens; {TOKENS} were asked for")


def _check(url: str, met: bool, otherwise: str) -> None:
    if not met:
        raise ServerFailed(f"{url} fails its smoke test: {otherwise}")

"""The engine, compared with plain Transformers on tiny models with random weights."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.serve.probe import MAX_TOKENS, PROMPTS, TEMPERATURE
from tests.serve.tiny import tiny_model
from tests.source import last_json

Completions = list[dict[str, Any]]
CLOSE = 0.08  # the maximum difference in nats between bf16 and fp32


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    found = []
    for seed in (0, 1):
        directory = tmp_path_factory.mktemp(f"model{seed}")
        tiny_model(directory, seed=seed)
        found.append(directory)
    return found[0], found[1]


@pytest.fixture(scope="module")
def probed(vllm: None, models: tuple[Path, Path]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.serve.probe", *map(str, models)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(last_json(done.stdout))


def true_logprobs(model: Path, prompt: list[int], written: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Return the log-probabilities that fp32 Transformers computes for every token at each position of `written`."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = reference(torch.tensor([[*prompt, *written]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1)


def test_log_probabilities_are_those_of_the_distribution_that_was_drawn_from(
    models: tuple[Path, Path], probed: dict[str, Completions]
) -> None:
    for number, completion in enumerate(probed["drawn"]):
        written = completion["token_ids"]
        truth = true_logprobs(models[0], PROMPTS[number // 8], written, TEMPERATURE)
        expected = truth[range(len(written)), written]
        torch.testing.assert_close(torch.tensor(completion["logprobs"]), expected, atol=CLOSE, rtol=0)


def test_n_completions_of_a_prompt_stand_together_and_differ(probed: dict[str, Completions]) -> None:
    drawn = [tuple(completion["token_ids"]) for completion in probed["drawn"]]
    assert len(drawn) == 16
    assert len(set(drawn)) > 8


@pytest.mark.parametrize(("name", "which"), [("greedy", 0), ("replaced", 1)])
def test_replaced_weights_are_the_ones_that_answer(
    name: str, which: int, models: tuple[Path, Path], probed: dict[str, Completions]
) -> None:
    for prompt, completion in zip(PROMPTS, probed[name], strict=True):
        written = completion["token_ids"]
        truth = true_logprobs(models[which], prompt, written)
        assert (truth.max(dim=-1).values - truth[range(len(written)), written]).max() < CLOSE


def test_a_completion_ends_by_the_end_of_text_or_at_the_limit(
    models: tuple[Path, Path], probed: dict[str, Completions]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models[0])
    for completion in probed["greedy"] + probed["drawn"]:
        written = completion["token_ids"]
        assert completion["ended"] == (written[-1] == tokenizer.eos_token_id)
        assert completion["ended"] or len(written) == MAX_TOKENS


def test_an_engine_that_computes_another_model_than_transformers_is_refused(probed: dict[str, Any]) -> None:
    assert "vLLM does not compute the model that Transformers computes: on a text of 48 tokens" in probed["another"]

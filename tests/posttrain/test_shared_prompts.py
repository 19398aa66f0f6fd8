"""A prompt with several completions is computed once, and the results equal those of the usual computation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, Qwen3Config
from trl.trainer.utils import add_fused_lm_head

from baton.tasks.posttrain.encode import IGNORED
from baton.tasks.posttrain.trl_hooks.shared_prompts import log, share_prompts

Batch = dict[str, torch.Tensor]
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


def model_of(config: PretrainedConfig, *fields: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    add_fused_lm_head(model, outputs=("log_probs", *fields))
    return model


def batch_of(*pairs: tuple[list[int], list[int]], prompts_on_the_right: bool = False) -> Batch:
    """Return a batch with prompts padded on the left and completions on the right, as GRPO pads, or with all padding
    on the right, as DPO does."""
    before = 0 if prompts_on_the_right else max(len(prompt) for prompt, _ in pairs)
    after = max(len(completion) + (len(prompt) if prompts_on_the_right else 0) for prompt, completion in pairs)
    rows = []
    for prompt, completion in pairs:
        left = max(0, before - len(prompt))
        right = before + after - left - len(prompt) - len(completion)
        tokens = [0] * left + prompt + completion + [0] * right
        mask = [0] * left + [1] * (len(prompt) + len(completion)) + [0] * right
        labels = [IGNORED] * (left + len(prompt)) + completion + [IGNORED] * right
        rows.append((tokens, mask, labels))
    parts = (torch.tensor(part) for part in zip(*rows, strict=True))
    return dict(zip(("input_ids", "attention_mask", "labels"), parts, strict=True))


def some_pairs(prompts: int, answers: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Generate prompts of 1 to 30 tokens, each with completions of 0 to 12 tokens."""
    drawn = torch.Generator().manual_seed(seed)

    def draw(least: int, most: int) -> list[int]:
        count = int(torch.randint(least, most + 1, (), generator=drawn))
        return torch.randint(1, 64, (count,), generator=drawn).tolist()

    return [(prompt, draw(0, 12)) for prompt in (draw(1, 30) for _ in range(prompts)) for _ in range(answers)]


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[int]]:
    """Count the tokens that the model's layers receive in each call, including padding."""

    def count(model: Any) -> list[int]:
        tokens: list[int] = []
        own = model.base_model.forward

        def forward(*args: Any, **inputs: Any) -> Any:
            tokens.append(inputs["input_ids"].numel())
            return own(*args, **inputs)

        monkeypatch.setattr(model.base_model, "forward", forward)
        return tokens

    return count


@pytest.mark.parametrize("config", [LlamaConfig(**SIZES), Qwen3Config(**SIZES)], ids=lambda each: each.model_type)
@pytest.mark.parametrize("on_the_right", [False, True], ids=["as GRPO pads", "as DPO pads"])
def test_log_probabilities_and_gradients_are_those_of_each_row_alone(
    config: PretrainedConfig, on_the_right: bool
) -> None:
    model = model_of(config, "entropy", "mean_logits", "is_top1")
    batch = batch_of(*some_pairs(prompts=7, answers=6), prompts_on_the_right=on_the_right)
    usual = model(**batch, fused_lm_head=True)
    weights = torch.randn_like(usual.log_probs)
    expected = gradients(model, (usual.log_probs * weights).sum())
    share_prompts(model)
    shared = model(**batch, fused_lm_head=True)
    for name in ("loss", "log_probs", "entropy", "mean_logits", "is_top1", "label_mask"):
        torch.testing.assert_close(getattr(shared, name), getattr(usual, name), rtol=1e-5, atol=1e-5)
    found = gradients(model, (shared.log_probs * weights).sum())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_prompt_is_computed_once(counted: Callable[[Any], list[int]]) -> None:
    model = model_of(Qwen3Config(**SIZES))
    share_prompts(model)
    batch = batch_of(*[(list(range(1, 41)), [seed, 2, 3, 4]) for seed in range(1, 9)])
    tokens = counted(model)
    model(**batch, fused_lm_head=True)
    assert tokens == [39 + 8 * 5]  # instead of 8 * 44


def test_long_completions_of_a_short_prompt_do_not_make_one_long_row(counted: Callable[[Any], list[int]]) -> None:
    model = model_of(Qwen3Config(**SIZES))
    share_prompts(model)
    batch = batch_of(*[([1, 2], [seed] * 40) for seed in range(1, 5)])
    tokens = counted(model)
    model(**batch, fused_lm_head=True)
    assert tokens == [4 * 42]


def test_a_model_with_windowed_layers_computes_each_completion_alone(counted: Callable[[Any], list[int]]) -> None:
    model = model_of(MistralConfig(**SIZES, sliding_window=8))
    batch = batch_of(*some_pairs(prompts=20, answers=3))
    usual = model(**batch, fused_lm_head=True).log_probs
    share_prompts(model)
    tokens = counted(model)
    torch.testing.assert_close(model(**batch, fused_lm_head=True).log_probs, usual)
    assert len(tokens) == 2
    assert sum(tokens) < batch["input_ids"].numel()  # less padding


def test_a_model_that_does_not_heed_the_mask_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # caplog captures nothing once a library that another test loads has replaced the root logger's handlers
    warned: list[str] = []
    monkeypatch.setattr(log, "warning", lambda text, *values: warned.append(text % values))
    model = model_of(Qwen3Config(**SIZES))
    layers = model.base_model.forward

    def causal(*args: Any, attention_mask: torch.Tensor, **inputs: Any) -> Any:
        return layers(*args, attention_mask=attention_mask if attention_mask.ndim == 2 else None, **inputs)

    model.base_model.forward = causal
    batch = batch_of(*some_pairs(prompts=3, answers=4))
    usual = model(**batch, fused_lm_head=True).log_probs
    share_prompts(model)
    torch.testing.assert_close(model(**batch, fused_lm_head=True).log_probs, usual)
    assert model.config._attn_implementation == "sdpa"
    assert len(warned) == 1 and "each completion is computed alone" in warned[0]


def test_a_completion_with_a_tools_answer_in_it_is_computed_as_before() -> None:
    model = model_of(Qwen3Config(**SIZES))
    batch = batch_of(*[([1, 2, 3], [4, 5, 6, 7, 8])] * 2)
    batch["labels"][:, 5] = IGNORED
    usual = model(**batch, fused_lm_head=True).log_probs
    share_prompts(model)
    torch.testing.assert_close(model(**batch, fused_lm_head=True).log_probs, usual)

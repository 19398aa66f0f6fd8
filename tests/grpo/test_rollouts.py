"""vLLM's weights follow the trainer's."""

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.posttrain.trl_hooks.grpo import CPUGeneration
from tests.posttrain.tiny import tiny_model


@pytest.mark.usefixtures("vllm")
def test_after_a_sync_the_engine_answers_with_the_trainers_weights(tmp_path: Path) -> None:
    first, second = tiny_model(tmp_path / "first", seed=1), tiny_model(tmp_path / "second", seed=2)
    model = AutoModelForCausalLM.from_pretrained(first, dtype=torch.float32)
    rollouts = CPUGeneration(
        seed=0,
        model=model,
        accelerator=Accelerator(cpu=True),
        processing_class=AutoTokenizer.from_pretrained(first),
        max_model_length=64,
        max_num_seqs=8,
        max_completion_length=16,
    )
    assert mismatch(model, rollouts) < 1.01

    sharper = AutoModelForCausalLM.from_pretrained(second, dtype=torch.float32)
    model.load_state_dict({name: 4 * weight for name, weight in sharper.state_dict().items()})
    assert mismatch(model, rollouts) > 1.1, "the engine still has the old weights"

    rollouts.sync_weights()
    assert mismatch(model, rollouts) < 1.05


def mismatch(model: torch.nn.Module, rollouts: CPUGeneration) -> float:
    """Mean of exp|log-probability(model) − log-probability(vLLM)| over sampled tokens."""
    prompts = [[5, 6, 7, 8], [9, 10, 11, 12, 13]]
    _, completions, logprobs, _ = rollouts.generate(prompts, None, num_generations=1)
    apart = []
    for prompt, completion, theirs in zip(prompts, completions, logprobs, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        ours = logits.log_softmax(-1)[range(len(completion)), list(completion)]
        apart.append((ours - torch.tensor(theirs)[:, 0]).abs())
    return float(torch.cat(apart).exp().mean())

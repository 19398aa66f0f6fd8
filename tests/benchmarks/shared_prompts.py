"""`python -m tests.benchmarks.shared_prompts [--rounds N]`

The log-probabilities that a GRPO step computes and their gradients, with each prompt computed once for its eight
completions, compared with TRL's own forward pass, which computes the prompt with each of them. Both project only the
completions to the vocabulary, in bf16 (autocast), on the CPU, with one model (Qwen3's architecture, 5.8 M parameters)
and batch.
"""

import argparse
from types import MethodType

import torch
import trl.trainer.utils
from transformers import AutoModelForCausalLM, Qwen3Config
from trl.trainer.utils import add_fused_lm_head

from baton.tasks.posttrain.encode import IGNORED
from baton.tasks.posttrain.trl_hooks.shared_prompts import share_prompts
from tests.benchmarks.harness import median_ratio, report, side_by_side

PROMPTS, COMPLETIONS = 16, 8
LENGTHS = {"short completions": (80, 14), "as long as the prompt": (80, 80), "long completions": (40, 160)}  # tokens


def batch_of(prompt: int, completion: int) -> dict[str, torch.Tensor]:
    """Return tensors of shape (PROMPTS × COMPLETIONS, prompt + completion): prompts padded on the left, completions on
    the right. Lengths are spread evenly from half the mean to one and a half times the mean."""
    drawn = torch.Generator().manual_seed(0)
    rows = PROMPTS * COMPLETIONS
    left, right = prompt * 3 // 2, completion * 3 // 2
    place = torch.arange(left + right)
    prompts = torch.randint(prompt // 2, left + 1, (PROMPTS,), generator=drawn).repeat_interleave(COMPLETIONS)
    completions = torch.randint(completion // 2, right + 1, (rows,), generator=drawn)
    tokens = torch.randint(4096, (PROMPTS, left), generator=drawn).repeat_interleave(COMPLETIONS, 0)
    tokens = torch.cat([tokens, torch.randint(4096, (rows, right), generator=drawn)], 1)
    mask = (place >= left - prompts[:, None]) & (place < left + completions[:, None])
    return {
        "input_ids": tokens.masked_fill(~mask, 0),
        "attention_mask": mask.long(),
        "labels": tokens.masked_fill(~mask | (place < left), IGNORED),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    trl.trainer.utils._use_triton = lambda device: True  # as in Baton's engines: the prompts are not projected
    sizes = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**sizes, **heads, tie_word_embeddings=True))
    add_fused_lm_head(model)
    own = model.forward
    share_prompts(model)
    shared = model.forward
    table, figures = [], {}
    for name, (prompt, completion) in LENGTHS.items():
        batch = batch_of(prompt, completion)

        def step(forward: MethodType, batch: dict[str, torch.Tensor] = batch) -> None:
            with torch.autocast("cpu", torch.bfloat16):
                forward(**batch, fused_lm_head=True).log_probs.sum().backward()

        contenders = {"shared": lambda: step(shared), "trl": lambda: step(own)}
        side_by_side(contenders, 1)  # warm up
        times = side_by_side(contenders, rounds)
        ratio = median_ratio(times["trl"], times["shared"])
        each = sorted(a / b for a, b in zip(times["trl"], times["shared"], strict=True))
        lengths = f"prompts of {prompt} tokens, completions of {completion}"
        table.append((name, f"{ratio:.2f} times as fast as TRL ({each[0]:.2f} to {each[-1]:.2f}): {lengths}"))
        figures[name.replace(" ", "_")] = ratio
    report("shared_prompts", table, figures)


if __name__ == "__main__":
    main()

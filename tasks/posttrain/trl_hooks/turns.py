"""Conversations with environments as GRPOTrainer's `rollout_func`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from baton.tasks.posttrain.turns import Conversation, Generate, counts, totals

Converse = Callable[[Sequence[int], int, Generate], list[Conversation]]
"""A function (indices of rows, one per completion; the step; a sampler) -> a conversation about each row."""


def rollouts(converse: Converse) -> Callable[[list[str], Any], dict[str, Any]]:
    """Return a `rollout_func` for prompts that are indices of rows. The rewards get the column `conversation`; the
    metrics are those of `totals`, over all processes. Each process has the conversations of its own completions, whose
    turns are sampled by their place in the batch of all processes, as in one process."""

    def roll_out(prompts: list[str], trainer: Any) -> dict[str, Any]:
        engine, accelerator = trainer.vllm_generation, trainer.accelerator
        first, batch = accelerator.process_index * len(prompts), accelerator.num_processes * len(prompts)

        def generate(
            ids: list[list[int]], numbers: list[int], turn: int, most: int
        ) -> tuple[list[list[int]], list[list[float]]]:
            engine.max_completion_length = most
            places = [turn * batch + first + number for number in numbers]
            _, sampled, logprobs, _ = engine.generate(ids, None, 1, places=places)
            return [list(turn) for turn in sampled], [[of_token[0] for of_token in turn] for turn in logprobs]

        done = converse(list(map(int, prompts)), trainer.state.global_step, generate)
        engine.until_all_have_sampled()
        counted = accelerator.reduce(torch.tensor(counts(done), dtype=torch.float64, device=accelerator.device), "sum")
        for name, value in totals(counted.tolist()).items():
            trainer._metrics["train"][name].append(value)
        return {
            "prompt_ids": [one.prompt for one in done],
            "completion_ids": [one.ids for one in done],
            "logprobs": [one.logprobs for one in done],
            "env_mask": [one.mask for one in done],
            "conversation": done,
        }

    return roll_out

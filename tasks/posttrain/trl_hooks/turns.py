"""Conversations with environments as GRPOTrainer's `rollout_func`."""

from collections.abc import Callable, Sequence
from typing import Any

from tasks.posttrain.turns import Conversation, Generate, totals

Converse = Callable[[Sequence[int], int, Generate], list[Conversation]]
"""(indices of rows, one per completion; the step; a sampler) -> a conversation about each."""


def rollouts(converse: Converse) -> Callable[[list[str], Any], dict[str, Any]]:
    """A `rollout_func` for prompts that are indices of rows. The rewards get the column `conversation`; the metrics are
    those of `totals`."""

    def roll_out(prompts: list[str], trainer: Any) -> dict[str, Any]:
        engine = trainer.vllm_generation

        def generate(ids: list[list[int]], places: list[int], most: int) -> tuple[list[list[int]], list[list[float]]]:
            engine.max_completion_length = most
            _, sampled, logprobs, _ = engine.generate(ids, None, 1, places=places)
            return [list(turn) for turn in sampled], [[of_token[0] for of_token in turn] for turn in logprobs]

        done = converse(list(map(int, prompts)), trainer.state.global_step, generate)
        for name, value in totals(done).items():
            trainer._metrics["train"][name].append(value)
        return {
            "prompt_ids": [one.prompt for one in done],
            "completion_ids": [one.ids for one in done],
            "logprobs": [one.logprobs for one in done],
            "env_mask": [one.mask for one in done],
            "conversation": done,
        }

    return roll_out

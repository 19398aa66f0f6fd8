"""Recorded rollouts instead of sampled ones, so that layouts can be compared: in each layout, the completion at a
place in a step's batch is the same."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trl.trainer.grpo_trainer
from safetensors.torch import save_file

from baton.tasks.posttrain.trl_hooks.grpo import LiveGeneration

# the end-of-text token, the first token that is not special, and the size of tiny_model's vocabulary
END, FIRST, ENTRIES = 0, 4, 512
LOG_PROB = -6.2  # about the value of a random model
CALL = '<tool_call>\n{"name": "roll", "arguments": {}}\n</tool_call>'  # a call of tests/posttrain/methods/dice.py
SYNCED = "synced.safetensors"


class RecordedGeneration(LiveGeneration):
    """Generation without an engine. The last rank saves the weights of the newest sync as vLLM would receive them."""

    def __init__(self, *, folder: Path, **settings: Any) -> None:
        self.folder = folder
        super().__init__(**settings)

    def _init_vllm(self) -> None:
        pass

    def sync_weights(self) -> None:
        weights = {name: weight.detach().clone() for name, weight in self._iter_named_params()}
        if self.accelerator.process_index == self.accelerator.num_processes - 1:
            save_file(weights, self.folder / SYNCED)

    def generate(
        self, prompts: Any, images: None, num_generations: int, profiler: Any = None, places: Any = None
    ) -> tuple[Any, ...]:
        if places is None:
            first = self.accelerator.process_index * len(prompts)
            completions = [completion(self.step, first + number) for number in range(len(prompts))]
        else:  # the turns of conversations
            completions = [self._turn(place) for place in places]
        return prompts, completions, [[[LOG_PROB]] * len(ids) for ids in completions], None

    def _turn(self, place: int) -> list[int]:
        """Return a call, or an answer that ends the conversation."""
        answer = random.Random(f"{self.step} {place}").choice([CALL, CALL, "Done.", "No."])
        ids = self.processing_class(answer, add_special_tokens=False)["input_ids"]
        return [*ids, self.generation_kwargs["stop_token_ids"][-1]]


def completion(step: int, place: int) -> list[int]:
    drawn = random.Random(f"{step} {place}")
    return [*(drawn.randrange(FIRST, ENTRIES) for _ in range(drawn.randrange(1, 12))), END]


def generate_recorded(
    folder: Path, _: object, seed: int, alive: Callable[[int], None], check_every: int | None
) -> None:
    """Replace generate_live. Without an engine, there are no weights to check."""
    trl.trainer.grpo_trainer.VLLMGeneration = partial(RecordedGeneration, folder=folder, seed=seed, alive=alive)

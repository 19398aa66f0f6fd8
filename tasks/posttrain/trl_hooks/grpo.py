"""Hooks into TRL's GRPOTrainer and its generation with vLLM."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl.trainer.grpo_trainer
from blake3 import blake3
from peft import PeftModel
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from tasks.posttrain.adapter import merged_weights
from tasks.posttrain.drift import beginning, check_drift, sum_and_count
from tasks.posttrain.weight_check import check_weights
from tasks.serve.engine import open_engine, sample
from tasks.serve.engine_weights import named_weights
from tasks.serve.vllm_hooks import reload_weights


class TokenTrainer(GRPOTrainer):
    """GRPOTrainer on prompts of token ids: the dataset's column `prompt` has indices into `prompt_ids`, as text.

    It also logs `rollout_mismatch`, how far vLLM's probabilities are from the trainer's over all processes, and raises
    StageError if it is above `most_drift`.
    """

    def __init__(self, prompt_ids: Sequence[list[int]], most_drift: float | None = None, **arguments: Any) -> None:
        self.prompt_ids, self.most_drift = prompt_ids, most_drift
        super().__init__(**arguments)

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.prompt_ids[int(index)] for index in prompts], None, {}

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self.vllm_generation.begin(self.state.global_step)
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mask = (output["completion_mask"] * output.get("tool_mask", 1)).bool()
        trainer, engine = output["old_per_token_logps"], output["sampling_per_token_logps"]
        total, count = self.accelerator.reduce(sum_and_count(trainer, engine, mask), "sum").tolist()
        self._metrics["train"]["rollout_mismatch"].append(total / count)
        if self.most_drift is not None:
            describe = beginning(self.processing_class.decode, output["completion_ids"], mask)
            check_drift(self.most_drift, total / count, trainer, engine, mask, describe)
        return output


class LiveGeneration(VLLMGeneration):
    """Generation with vLLM on the trainer's weights, one engine per process. A completion is drawn with a seed of its
    own, which depends on the run's seed, the step and the completion's place in the batch of all processes, and so on
    no layout; TRL seeds each process's engine.

    TRL merges an adapter in place to read the weights, and undoes it afterwards, which changes bf16 weights in each
    step.
    """

    def __init__(
        self, *, seed: int, alive: Callable[[int], None], check_every: int | None = None, **settings: Any
    ) -> None:
        self.seed, self.alive, self.check_every, self.step = seed, alive, check_every, 0
        super().__init__(**settings)
        _before_each_step(self.llm.llm_engine, lambda: alive(self.step))

    def begin(self, step: int) -> None:
        """Sample for the step after `step` completed ones."""
        self.step = step
        self.alive(step)

    def generate(
        self,
        prompts: Any,
        images: None,
        num_generations: int,
        profiler: Any = None,
        places: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        """A completion of each prompt; `places` in the batch of all processes, if not the prompts' own."""
        first = self.accelerator.process_index * len(prompts)
        if places is None:
            places = range(first, first + len(prompts))
        completions = sample(
            self.llm,
            prompts,
            temperature=self.temperature,
            max_tokens=self.max_completion_length,
            seeds=[completion_seed(self.seed, self.step, place) for place in places],
            **self.generation_kwargs,
        )
        ids = [list(completion.token_ids) for completion in completions]
        return prompts, ids, [[[each] for each in completion.logprobs] for completion in completions], None

    def sync_weights(self) -> None:
        """Load the trainer's weights into the engine; every `check_every` steps, prove that it has them."""
        self._load()
        if self.check_every and self.step % self.check_every == 0:
            compared = check_weights(self._iter_named_params(), named_weights(self.live_model()), self.step)
            if self.accelerator.is_main_process:
                print(f"step {self.step}: {compared}", flush=True)

    def _load(self) -> None:
        super().sync_weights()

    def live_model(self) -> Any:
        """The model in vLLM, which runs in this process."""
        return self.llm.llm_engine.model_executor.driver_worker.model_runner.model

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        return merged_weights(self.model) if isinstance(self.model, PeftModel) else super()._iter_named_params()


class CPUGeneration(LiveGeneration):
    """Colocated generation with vLLM on CPU, where TRL's own fails: it writes into vLLM's parameters, which the CPU
    build has repacked. vLLM reloads them in place instead, keeping the engine, its KV cache and its scheduler."""

    def _init_vllm(self) -> None:
        self.llm = open_engine(
            Path(self.model.name_or_path),
            max_model_len=self.max_model_length,
            max_num_seqs=self.max_num_seqs,
            seed=self.seed,
            whole_prompts=True,
        )

    def _load(self) -> None:
        reload_weights(self.llm, weights_iterator=self._iter_named_params())


def generate_live(seed: int, alive: Callable[[int], None], check_every: int | None) -> None:
    """Let GRPOTrainer generate with LiveGeneration, or CPUGeneration without a GPU. `alive` is called before each of
    vLLM's steps, with the number of completed training steps."""
    chosen = LiveGeneration if torch.cuda.is_available() else CPUGeneration
    trl.trainer.grpo_trainer.VLLMGeneration = partial(chosen, seed=seed, alive=alive, check_every=check_every)


def completion_seed(seed: int, step: int, place: int) -> int:
    """The seed of the completion at a place in the batch of the step after `step` completed ones."""
    return int.from_bytes(blake3(f"{seed} {step} {place}".encode()).digest(length=4), "little")


def _before_each_step(engine: Any, call: Callable[[], None]) -> None:
    own = engine.step

    def step(*args: Any, **more: Any) -> Any:
        call()
        return own(*args, **more)

    engine.step = step

"""Hooks into TRL's GRPOTrainer and its generation with vLLM."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl.trainer.grpo_trainer
from peft import PeftModel
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from tasks.posttrain.adapter import merged_weights
from tasks.posttrain.drift import beginning, check_drift
from tasks.serve.engine import open_engine
from tasks.serve.vllm_hooks import reload_weights


class TokenTrainer(GRPOTrainer):
    """GRPOTrainer on prompts of token ids: the dataset's column `prompt` has indices into `prompt_ids`, as text.

    It also logs `rollout_mismatch`, how far vLLM's probabilities are from the trainer's, and raises StageError if it is
    above `most_drift`.
    """

    def __init__(self, prompt_ids: Sequence[list[int]], most_drift: float | None = None, **arguments: Any) -> None:
        self.prompt_ids, self.most_drift = prompt_ids, most_drift
        super().__init__(**arguments)

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.prompt_ids[int(index)] for index in prompts], None, {}

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mask = (output["completion_mask"] * output.get("tool_mask", 1)).bool()
        trainer, engine = output["old_per_token_logps"], output["sampling_per_token_logps"]
        self._metrics["train"]["rollout_mismatch"].append((trainer - engine).abs()[mask].exp().mean().item())
        if self.most_drift is not None:
            describe = beginning(self.processing_class.decode, output["completion_ids"], mask)
            check_drift(self.most_drift, trainer, engine, mask, describe)
        return output


class LiveGeneration(VLLMGeneration):
    """Generation with vLLM on the trainer's weights. TRL merges an adapter in place to read the weights, and undoes it
    afterwards, which changes bf16 weights in each step."""

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        return merged_weights(self.model) if isinstance(self.model, PeftModel) else super()._iter_named_params()


class CPUGeneration(LiveGeneration):
    """Colocated generation with vLLM on CPU, where TRL's own fails: it writes into vLLM's parameters, which the CPU
    build has repacked. vLLM reloads them in place instead, keeping the engine, its KV cache and its scheduler."""

    def __init__(self, *, seed: int, **settings: Any) -> None:
        self.seed = seed
        super().__init__(**settings)

    def _init_vllm(self) -> None:
        self.llm = open_engine(
            Path(self.model.name_or_path),
            max_model_len=self.max_model_length,
            max_num_seqs=self.max_num_seqs,
            seed=self.seed,
        )

    def sync_weights(self) -> None:
        """Load the trainer's weights into the engine, and drop what it cached with the old ones."""
        reload_weights(self.llm, weights_iterator=self._iter_named_params())


def generate_live(seed: int) -> None:
    """Let GRPOTrainer generate with LiveGeneration, or CPUGeneration without a GPU."""
    chosen = LiveGeneration if torch.cuda.is_available() else partial(CPUGeneration, seed=seed)
    trl.trainer.grpo_trainer.VLLMGeneration = chosen

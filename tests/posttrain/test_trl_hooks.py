"""The private hooks into TRL and Transformers are still needed, in the versions that they are written for.

Other hooks are tested with the behavior that they change: test_trainer.py (the order after a resume),
test_templates.py, test_shared_prompts.py, methods/test_rollouts.py.
"""

import inspect
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer, GRPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer
from trl.generation.vllm_generation import VLLMGeneration

from baton.tasks.posttrain.trl_hooks import VERSIONS
from tests.posttrain.tiny import tiny_model


@pytest.mark.parametrize("library", VERSIONS)
def test_the_hooks_are_written_for_the_installed_versions(library: str) -> None:
    assert version(library).startswith(VERSIONS[library] + ".")


def test_trl_scores_every_position_on_a_cpu() -> None:
    from trl.kernels.chunked_logprob import _use_triton

    assert not _use_triton(torch.device("cpu"))


def test_accelerate_does_not_shard_on_cpus() -> None:
    branches = inspect.getsource(AcceleratorState.__init__).split("elif self.distributed_type in [")
    devices = branches[1].partition("]")[0]
    assert "MULTI_GPU" in devices and "MULTI_CPU" not in devices


def test_memory_cannot_be_pinned_without_a_gpu() -> None:
    words = [sys.executable, "-c", "import torch; torch.empty(1).pin_memory()"]  # vLLM replaces it in its process
    assert "RuntimeError" in subprocess.run(words, capture_output=True, text=True, check=False).stderr


def test_trl_merges_an_adapter_in_place() -> None:
    assert "model.merge_adapter()" in inspect.getsource(VLLMGeneration._iter_named_params)


def test_trl_seeds_each_process_s_engine() -> None:
    assert "seed=accelerator.process_index" in inspect.getsource(VLLMGeneration._init_vllm)


def test_a_generator_on_a_cpu_cannot_be_turned_back() -> None:
    """vLLM rewinds the generator after a chunk of a prompt (open_engine's `whole_prompts`)."""
    with pytest.raises(RuntimeError, match="offset"):
        torch.Generator().get_offset()


def test_trl_prepares_the_pairs_of_dpo_in_any_case() -> None:
    assert "dataset_kwargs" in {field.name for field in fields(SFTConfig)}
    assert "dataset_kwargs" not in {field.name for field in fields(DPOConfig)}


def test_trl_estimates_the_kl_term_of_kto_in_each_micro_batch() -> None:
    assert "kl = (KL_logps - ref_KL_logps).mean()" in inspect.getsource(KTOTrainer._compute_loss)
    assert "dataset_kwargs" not in {field.name for field in fields(KTOConfig)}


@pytest.mark.parametrize("trainer", [SFTTrainer, DPOTrainer, KTOTrainer])
def test_trl_records_the_mean_of_micro_batches_means(trainer: Any) -> None:
    assert "sum(val) / len(val) for key, val in self._metrics[mode]" in inspect.getsource(trainer.log)


def test_trl_takes_no_token_ids_as_prompts_of_grpo(tmp_path: Path) -> None:
    trainer = GRPOTrainer.__new__(GRPOTrainer)  # skips the model, since only the tokenizer is used
    trainer.processing_class = AutoTokenizer.from_pretrained(tiny_model(tmp_path / "model"))
    with pytest.raises((TypeError, ValueError)):
        trainer._tokenize_prompts([[5, 6], [7, 8]])

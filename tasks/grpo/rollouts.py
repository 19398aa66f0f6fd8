"""Rollouts from a live vLLM engine on CPU, whose weights follow the trainer's.

TRL's own colocate mode writes into vLLM's parameters, which the CPU build has repacked by then (it
fails there). vLLM can load them anew in place: nothing touches the disk, and the engine, its KV
cache and its scheduler stay as they are. On a GPU, TRL's own mode serves.
"""

from pathlib import Path
from typing import Any

from trl.generation.vllm_generation import VLLMGeneration

from tasks.serve.engine import open_engine


class LiveRollouts(VLLMGeneration):
    """TRL's generation with vLLM, in this process, on CPU."""

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
        """Give the engine the trainer's weights, and forget what it cached under the old ones."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._iter_named_params()})
        self.llm.reset_prefix_cache()

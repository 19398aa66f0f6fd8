"""Tiny models of several families. `python -m tests.posttrain.methods.families FOLDER` syncs a trainer's weights of
each into a live engine, and prints as JSON, by family, the mean of exp|Δ log p| between trainer and engine after the
sync."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.tasks.core.manifest import RECORD
from baton.tasks.models.agreement import probe
from baton.tasks.models.model_files import load_causal_lm
from tests.posttrain.tiny import tiny_model

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "bos_token_id": None,
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 256} | {
    name: SIZES[name] for name in ("vocab_size", "eos_token_id", "bos_token_id", "pad_token_id")
}
FAMILIES: dict[str, dict[str, Any]] = {
    "GPT2Config": GPT2,  # transposed weights
    "GPTNeoXConfig": SIZES,  # other names in memory; queries, keys and values grouped by head
    "MixtralConfig": SIZES | {"num_key_value_heads": 1, "num_local_experts": 3},  # stacked experts in memory
    "Qwen3MoeConfig": SIZES
    | {
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_experts": 3,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 32,
    },
    "ApertusConfig": SIZES | {"num_key_value_heads": 1},  # buffers
    "Starcoder2Config": SIZES | {"num_key_value_heads": 1, "sliding_window": None},  # uses the code of Transformers
    "Gemma2Config": SIZES | {"num_key_value_heads": 1, "head_dim": 32, "attn_logit_softcapping": 0.5},
}


def tiny_family(folder: Path, name: str) -> Path:
    """Write a model of a family, with the tokenizer of `tiny_model`."""
    tiny_model(folder)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(getattr(transformers, name)(**FAMILIES[name]))
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data *= 4  # large enough that a wrong weight shows
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def main() -> None:
    from accelerate import Accelerator  # imported late, since a test imports this module, and these import vLLM

    from baton.tasks.posttrain.trl_hooks.grpo import CPUGeneration
    from baton.tasks.vllm.engine import close_engines
    from tests.posttrain.methods.rollouts import mismatch

    root, found = Path(sys.argv[1]), {}
    for name in FAMILIES:
        folder = tiny_family(root / name, name)
        (folder / RECORD).mkdir()
        model = load_causal_lm(folder, dropout=False, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        probe(model, tokenizer).write(folder / RECORD)
        rollouts = CPUGeneration(
            seed=0,
            alive=lambda step: None,
            check_every=1,
            model=model,
            accelerator=Accelerator(cpu=True),
            processing_class=tokenizer,
            max_model_length=64,
            max_num_seqs=8,
            max_completion_length=16,
        )
        rollouts.sync_weights()  # checks the weights and the probe
        found[name] = mismatch(model.train(), rollouts)
        del rollouts
        close_engines()
    print(json.dumps(found))


if __name__ == "__main__":
    main()

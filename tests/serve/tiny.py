"""A complete model and corpus, made in two seconds: Qwen3's architecture, random weights, real text."""

import argparse
import inspect
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from baton.tasks.core.manifest import Manifest, write_manifest
from baton.tasks.data.documents import SplitWriter, document

EOS, PAD = "<|endoftext|>", "<|pad|>"
CHAT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
POSITIONS = 256


def tiny_model(directory: Path, *, seed: int = 0, positions: int = POSITIONS, heads: int = 2) -> Manifest:
    """Write a sealed HFModel with 2 layers, width 64, 600 tokens, in bf16."""
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(directory)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=32,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        initializer_range=0.1,  # large enough that a wrong weight shows
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config).bfloat16()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(directory)
    facts = {
        "label": "tiny",
        "architecture": "Qwen3ForCausalLM",
        "parameters": sum(each.numel() for each in model.parameters()),
        "vocab_size": len(tokenizer),
        "max_positions": positions,
        "dtype": "bfloat16",
    }
    return write_manifest(directory, "hf_model", facts)


def tiny_corpus(directory: Path) -> Manifest:
    """Write a sealed corpus whose held-out split is twenty modules of the standard library."""
    directory.mkdir()
    writer = SplitWriter(directory, "held_out")
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("c*.py"))[:20]:
        writer.add(document(path.name, path.read_text()))
    writer.close()
    return write_manifest(directory, "corpus", {})


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([inspect.getsource(argparse)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, chat_template=CHAT)

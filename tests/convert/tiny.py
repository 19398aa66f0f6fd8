"""A tiny tokenizer artifact for the vocabulary of the tests' models."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from baton.tasks.core.manifest import write_manifest
from tests.pretrain.tiny import VOCABULARY


def make_tokenizer(folder: Path, text: str = "def f(x):\n    return x\n") -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>", "<|pad|>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator([text] * 10, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|pad|>")
    fast.save_pretrained(folder)
    write_manifest(folder, "tokenizer", {"vocab_size": len(fast), "eos_id": 0, "pad_id": 1})
    return folder

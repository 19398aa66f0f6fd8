"""Small tokenizers in the layout of real ones, created in milliseconds."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = [
    "The river was calm in 2023, and 1,200 people came.\n",
    "def add(a, b):\n    return a + b\n",
    "What is 12 plus 30? It is 42. Ünïcode: 漢字, don't.\n",
]
# separate digits, as in the families of Llama and DeepSeek; no space before punctuation
DIGITS = r"\p{N}|[^\s\p{L}\p{N}]+|\s?\p{L}+|\s+"
END, PAD, BEGIN = "<|end|>", "<|pad|>", "<|begin|>"
TURNS = ("<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(*special: str, pattern: str = DIGITS, begin: str = "", end: str = "") -> Tokenizer:
    """Return a byte-level BPE. `begin` and `end` are special tokens that it adds to every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special or (END, PAD)), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT * 20, trainer)
    if begin or end:
        added = [(token, tokenizer.token_to_id(token)) for token in (begin, end) if token]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(filter(None, (begin, "$A", end))), special_tokens=added
        )
    return tokenizer


def metaspace() -> Tokenizer:
    """Return a BPE with SentencePiece's spaces, like Llama 2's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    letters = ["<unk>", "<s>", "</s>", *(f"<0x{number:02X}>" for number in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=letters, show_progress=False)
    tokenizer.train_from_iterator([f"▁{line}".replace(" ", "▁") for line in TEXT * 20], trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # the bytes are ordinary entries
    return Tokenizer.from_str(json.dumps(content))


def folder(path: Path, tokenizer: Tokenizer, *, model_type: str | None = None, **config: Any) -> Path:
    """Write a folder with the tokenizer.json, and a tokenizer_config.json with these fields."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "pad_token": PAD} | config))
    if model_type:
        (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    return path

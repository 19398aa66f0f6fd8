"""The engine that makes the tokenizer: a byte-level BPE trained on the train split, or a copy of an
existing one. Either way the output loads with `transformers.AutoTokenizer.from_pretrained`.

The pattern below decides what a token can never span. Lines and indentation stand apart from words,
so that a prompt that ends in a newline and a line's whole indentation encodes to an exact prefix of
the same prompt with its completion: the model never meets a boundary that it has not seen.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from infra.durable import write_json
from tasks.data.documents import read_documents
from tasks.data.spec import SPECIAL_TOKENS, TokenizerSpec
from tasks.job import Job, StageError, main
from tasks.manifest import read_manifest

END_OF_TEXT, PAD, *CHAT_TOKENS = SPECIAL_TOKENS

PATTERN = "|".join(
    (
        r"[\r\n]+",  # line ends, blank lines together
        r"(?<=[\r\n])[ \t]+",  # a line's whole indentation
        r"[ _]?\p{L}+",  # a word with the space or underscore before it: snake_case falls into its words
        r" ?\p{N}{1,3}",  # digits by threes
        r" ?[^\s\p{L}\p{N}]+",  # a run of punctuation
        r"[^\S\r\n]+(?!\S)|[^\S\r\n]+",  # other white space, but for the last, which goes with the next word
    )
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SAMPLE_CHARACTERS = 600


# What Transformers reads beside tokenizer.json; written here, since importing it takes longer than the training.
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END_OF_TEXT,
    "pad_token": PAD,
    "additional_special_tokens": CHAT_TOKENS,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 10**30,  # Transformers' word for "no limit": the model has one, the tokenizer none
}


def work(job: Job) -> None:
    spec = job.spec(TokenizerSpec)
    if problems := spec.problems():
        raise StageError("; ".join(map(str, problems)))
    corpus = job.input("corpus")
    job.empty_output()
    if spec.existing is not None:
        eos_id, pad_id = _copy(spec.existing, str(spec.folder() or spec.existing), job.output)
    else:
        assert spec.vocab_size is not None  # by problems(): one of the two
        eos_id, pad_id = _train(job, spec.vocab_size, spec.min_frequency, corpus)
    tokenizer = FastTokenizer.from_file(str(job.output / "tokenizer.json"))
    _write_sample(job, tokenizer, corpus)
    # an embedding needs a row for the highest id, whatever ids are left out below it
    job.finish(vocab_size=max(tokenizer.get_vocab().values()) + 1, eos_id=eos_id, pad_id=pad_id)


def _train(job: Job, vocab_size: int, min_frequency: int, corpus: Path) -> tuple[int, int]:
    """Train on the train split and write the folder; returns the ids of end-of-text and padding.
    Raises StageError."""
    if not read_manifest(corpus).facts["documents"]:
        raise StageError("the corpus has no documents to train a tokenizer on; give one that has, or an existing one")
    bpe = untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_texts(job, corpus), trainer)
    if bpe.get_vocab_size() < vocab_size:
        raise StageError(
            f"vocab_size={vocab_size}: the corpus has pairs for {bpe.get_vocab_size()} entries only; "
            f"ask for that many, give more text, or lower min_frequency ({min_frequency})"
        )
    bpe.save(str(job.output / "tokenizer.json"))
    write_json(job.output / "tokenizer_config.json", CONFIG)
    (job.output / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return SPECIAL_TOKENS.index(END_OF_TEXT), SPECIAL_TOKENS.index(PAD)  # the trainer numbers them first


def untrained() -> FastTokenizer:
    """The empty BPE with Baton's pattern. It has no normalizer: decode(encode(text)) == text."""
    bpe = FastTokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    return bpe


def _texts(job: Job, corpus: Path) -> Iterator[str]:
    total = read_manifest(corpus).facts["bytes"] / 1e6
    seen = 0.0
    for item in read_documents(corpus, "train"):
        yield item.text
        seen += len(item.text) / 1e6
        job.progress(min(seen, total), total, "MB")


def _copy(name: str, where: str, output: Path) -> tuple[int, int]:
    """Copy an existing tokenizer, checked for what the stages need; returns the ids of end-of-text and
    padding. Raises StageError."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise StageError(f"existing={name!r}: {error}") from error
    for how_it_was_found in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(how_it_was_found, None)  # Transformers would save it: no part of a result
    if not tokenizer.is_fast:
        raise StageError(f"existing={name!r}: has no tokenizer.json (the fast form), which the shards need")
    if tokenizer.eos_token_id is None:
        raise StageError(f"existing={name!r}: has no end-of-text token, which ends every document; set its eos_token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # the usual choice: padding is masked in every loss here
    tokenizer.save_pretrained(output)
    return tokenizer.eos_token_id, tokenizer.pad_token_id


def _write_sample(job: Job, tokenizer: FastTokenizer, corpus: Path) -> None:
    """A held-out text cut into tokens, and how many bytes a token holds there."""
    texts = [item.text for item in islice(read_documents(corpus, "held_out"), 32)]
    if not texts:
        return  # nothing is held out
    tokens = sum(len(encoding) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    cut = tokenizer.encode(texts[0][:SAMPLE_CHARACTERS], add_special_tokens=False)
    write_json(
        job.record / "sample.json",
        {
            "bytes_per_token": sum(len(text.encode()) for text in texts) / tokens,
            "pieces": [texts[0][start:end] for start, end in cut.offsets],
        },
    )


if __name__ == "__main__":
    main(work)

"""The engine that creates the tokenizer: a byte-level BPE trained on the train split, or a copy of an existing one. The
output loads with `transformers.PreTrainedTokenizerFast.from_pretrained`.

Tokens never span the boundaries of one of the patterns below. Baton's pattern, `lines`, separates line ends and
indentations from words: the tokens of a prompt that ends after a newline and the line's indentation are a prefix of the
tokens of prompt and completion, and the model never encounters a token boundary that training did not have. With
`llama3` that holds if the completion begins with the last space of the indentation, which belongs to the word after
it.

A sample of a train split larger than `sample_mb` is used, since BPE training gains little from more text and its
memory grows with the number of distinct words. Documents are chosen by their content hash: the sample has the same
share of every source, and does not depend on the documents' order.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from baton.infra.storage.durable import write_json
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.documents import documents_in, read_documents, row_groups
from baton.tasks.data.spec import SPECIAL_TOKENS, TokenizerSpec
from baton.tasks.models.tokenizer_files import CONFIG as TOKENIZER_CONFIG
from baton.tasks.models.tokenizer_files import FILES, TEMPLATE, TOKENIZER
from baton.tasks.models.tokenizers import UNKNOWN, load, plain, size, write

END_OF_TEXT, PAD, *CHAT_TOKENS = SPECIAL_TOKENS

PATTERNS = {
    "llama3": (  # also that of GPT-4's cl100k_base; gigatoken encodes it (encoders.py)
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",  # contractions
        r"[^\r\n\p{L}\p{N}]?\p{L}+",  # a word with one preceding character: a space, an underscore, a bracket
        r"\p{N}{1,3}",  # groups of up to three digits
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",  # a run of punctuation, with line ends
        r"\s*[\r\n]+",  # line ends, blank lines together
        r"\s+(?!\S)|\s+",  # other white space, except the last one, which belongs to the next word
    ),
    "lines": (
        r"[\r\n]+",  # line ends, blank lines together
        r"(?<=[\r\n])[ \t]+",  # a line's entire indentation
        r"[ _]?\p{L}+",  # a word with the preceding space or underscore, so that snake_case is split into words
        r" ?\p{N}{1,3}",  # groups of up to three digits
        r" ?[^\s\p{L}\p{N}]+",  # a run of punctuation
        r"[^\S\r\n]+(?!\S)|[^\S\r\n]+",  # other white space, except the last one, which belongs to the next word
    ),
}

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SAMPLE_CHARACTERS = 600


# tokenizer_config.json; written directly, since importing transformers takes longer than training
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END_OF_TEXT,
    "pad_token": PAD,
    "additional_special_tokens": CHAT_TOKENS,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 10**30,  # transformers' value for "no limit"
}


def work(job: Job) -> None:
    spec = job.spec(TokenizerSpec)
    if problems := spec.problems():
        raise StageError("; ".join(map(str, problems)))
    corpus = job.input("corpus")
    job.empty_output()
    if spec.existing is not None:
        eos_id, pad_id = _copy(job, spec)
    else:
        assert spec.vocab_size is not None  # problems() requires one of the two
        eos_id, pad_id = _train(job, spec, spec.vocab_size, corpus)
    tokenizer = plain(job.output)
    if eos_id in tokenizer.encode(UNKNOWN, add_special_tokens=False).ids:
        raise StageError(
            f"existing={spec.existing!r}: a character that it does not know becomes the token that ends a document; "
            "give it a separate unk_token in tokenizer.json, or use a byte-level tokenizer"
        )
    _write_sample(job, tokenizer, corpus)
    job.finish(vocab_size=size(tokenizer), eos_id=eos_id, pad_id=pad_id)


def _train(job: Job, spec: TokenizerSpec, vocab_size: int, corpus: Path) -> tuple[int, int]:
    """Train on the train split and write the folder; returns the ids of the end-of-text and padding tokens. Raises
    StageError."""
    if not read_manifest(corpus).facts["documents"]:
        raise StageError("the corpus has no documents to train a tokenizer on; add some, or use an existing tokenizer")
    bpe = untrained(spec.pattern)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=spec.min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(sample_of(job, corpus, spec.sample_mb), trainer)
    if bpe.get_vocab_size() < vocab_size:
        raise StageError(
            f"vocab_size={vocab_size}: the corpus only has pairs for {bpe.get_vocab_size()} entries; "
            f"use that size, add text (sample_mb is {spec.sample_mb:g}), or lower min_frequency ({spec.min_frequency})"
        )
    bpe.save(str(job.output / TOKENIZER))
    write_json(job.output / TOKENIZER_CONFIG, CONFIG)
    (job.output / TEMPLATE).write_text(CHAT_TEMPLATE)
    return SPECIAL_TOKENS.index(END_OF_TEXT), SPECIAL_TOKENS.index(PAD)  # the trainer assigns their ids first


def untrained(pattern: str) -> FastTokenizer:
    """An untrained BPE with one of PATTERNS and no normalizer, so that decode(encode(text)) == text."""
    bpe = FastTokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(PATTERNS[pattern])), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    return bpe


def sample_of(job: Job, corpus: Path, sample_mb: float) -> Iterator[list[str]]:
    """The sample of the train split, a row group (about 1 MiB of text) at a time: with single documents, and progress
    after each, the library would mostly wait."""
    facts = read_manifest(corpus).facts
    share = min(1.0, sample_mb * 1e6 / facts["bytes"])
    documents = 0
    for group in row_groups(corpus, "train"):
        yield [item.text for item in documents_in(group.read()) if in_sample(item.id, share)]
        documents += group.rows()
        used_mb = share * facts["bytes"] / 1e6
        job.progress(used_mb * documents / facts["documents"], used_mb, "MB")


def in_sample(document_id: str, share: float) -> bool:
    """Return whether a document belongs to a sample of this share of all documents. A larger sample has every document
    of a smaller one. Uses other digits of the id than the split."""
    return int(document_id[16:32], 16) < share * 2**64


def _copy(job: Job, spec: TokenizerSpec) -> tuple[int, int]:
    """Copy an existing tokenizer; returns the ids of the end-of-text and padding tokens. Raises StageError."""
    from huggingface_hub import snapshot_download

    name = spec.existing
    try:
        folder = spec.folder() or Path(snapshot_download(str(name), allow_patterns=[*FILES]))
    except (OSError, ValueError) as error:
        raise StageError(f"existing={name!r}: {error}") from error
    tokenizer = load(folder, spec.chat_template)
    if tokenizer.eos_token_id is None:
        raise StageError(f"existing={name!r}: has no end-of-text token, which ends every document; set its eos_token")
    for note in write(folder, job.output, spec.chat_template):
        job.notice(note)
    return tokenizer.eos_token_id, tokenizer.pad_token_id


def _write_sample(job: Job, tokenizer: FastTokenizer, corpus: Path) -> None:
    """Write the tokens of a held-out text and the number of bytes per token, for the report."""
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

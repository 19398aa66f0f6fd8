"""The check's data: Python's standard library through the data stages, and rows of it for post-training."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from baton.tasks.data.spec import CorpusSpec, ShardsSpec, TokenizerSpec
from baton.tasks.rows.spec import RowsSpec
from baton.tasks.user_code.functions import Function
from baton.workflows.gpu_check.step import Check

HELD_OUT = 0.1  # of the documents
ROWS = 2000


def data(check: Check) -> None:
    """Raw text → documents, a tokenizer, Megatron's shards and rows."""
    corpus = check.run(
        "baton.tasks.data.corpus", "corpus", CorpusSpec(source=check.size.source, held_out=HELD_OUT), "corpus"
    )
    read = corpus / "output"
    words = TokenizerSpec(vocab_size=check.size.vocabulary())
    tokenizer = check.run("baton.tasks.data.tokenizer", "tokenizer", words, "tokenizer", corpus=read)
    check.run(
        "baton.tasks.data.shards",
        "tokenized_corpus",
        ShardsSpec(),
        "shards",
        corpus=read,
        tokenizer=tokenizer / "output",
    )
    spec = RowsSpec(
        function=Function(name=f"{Path(__file__)}:rows"),
        documents=True,
        arguments={"prompt": 2 * check.size.prompt, "completion": check.size.new},
        limit=ROWS,
    )
    check.run("baton.tasks.rows.rows", "rows", spec.pinned(), "rows", corpora__0=read)


def rows(documents: Iterable[dict[str, Any]], prompt: int, completion: int) -> Iterator[dict[str, str]]:
    """Cut each document's text into pairs of a prompt and its continuation; lengths in characters."""
    for document in documents:
        text, length = document["text"], prompt + completion
        for begin in range(0, len(text) - length, length):
            before, after = text[begin : begin + prompt], text[begin + prompt : begin + length]
            if before.strip() and after.strip():
                yield {"prompt": before, "completion": after}

"""The check's data: Python's standard library through the data stages, and rows of it for post-training."""

from pathlib import Path

from baton.tasks.data.spec import CorpusSpec, ShardsSpec, TokenizerSpec
from baton.tasks.rows.spec import RowsSpec
from baton.tasks.user_code.functions import Function
from baton.workflows.gpu_check.step import Check

HELD_OUT = 0.1  # of the documents
ROWS = 2000
FUNCTIONS = Path(__file__).with_name("functions")  # no package: they are loaded as a user's files are


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
        function=Function(name=f"{FUNCTIONS}/rows.py:rows"),
        documents=True,
        arguments={"prompt": 2 * check.size.prompt, "completion": check.size.new},
        limit=ROWS,
    )
    check.run("baton.tasks.rows.rows", "rows", spec.pinned(), "rows", corpora__0=read)

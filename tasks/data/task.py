"""The three data stages: a source → corpus → tokenizer → tokenized shards."""

import images
from infra.launch import Engine
from tasks.artifacts import Corpus, TokenizedCorpus, Tokenizer
from tasks.data.spec import CorpusSpec, ShardsSpec, TokenizerSpec
from tasks.stage import run, stage

CORPUS = Engine("corpus", "tasks.data.corpus", version="1")
TOKENIZER = Engine("tokenizer", "tasks.data.tokenizer", version="1")
SHARDS = Engine("shards", "tasks.data.shards", version="2")


@stage(CORPUS, image=images.DATA)
def prepare_corpus(spec: CorpusSpec) -> Corpus:
    """Read a source; drop duplicates; split it by content."""
    return run(CORPUS, Corpus, spec)


@stage(TOKENIZER, image=images.DATA)
def train_tokenizer(spec: TokenizerSpec, corpus: Corpus) -> Tokenizer:
    """Train a byte-level BPE on the train split, or copy an existing tokenizer."""
    return run(TOKENIZER, Tokenizer, spec, corpus=corpus)


@stage(SHARDS, image=images.DATA)
def tokenize(spec: ShardsSpec, corpus: Corpus, tokenizer: Tokenizer) -> TokenizedCorpus:
    """Write both splits as Megatron `.bin/.idx`."""
    return run(SHARDS, TokenizedCorpus, spec, corpus=corpus, tokenizer=tokenizer)

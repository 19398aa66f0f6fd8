"""A count of words as a Flyte task."""

import images
from infra.process.launch import Engine
from tasks.data.artifact import Corpus
from tasks.run import run
from tasks.stage import stage
from tasks.words.artifact import WordCount
from tasks.words.spec import WordsSpec

COUNT = Engine("words", "tasks.words.count", version="1")


@stage(COUNT, image=images.DATA)
def count_words(spec: WordsSpec, corpus: Corpus) -> WordCount:
    """Count the words of a corpus."""
    return run(COUNT, WordCount, spec, corpus=corpus)

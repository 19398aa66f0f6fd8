"""A count of words as a Flyte task."""

from baton import images
from baton.infra.process.launch import Engine
from baton.tasks.data.artifact import Corpus
from baton.tasks.run import run
from baton.tasks.stage import stage
from baton.tasks.words.artifact import WordCount
from baton.tasks.words.spec import WordsSpec

COUNT = Engine("words", "tasks.words.count", version="1")


@stage(COUNT, image=images.DATA)
def count_words(spec: WordsSpec, corpus: Corpus) -> WordCount:
    """Count the words of a corpus."""
    return run(COUNT, WordCount, spec, corpus=corpus)

"""The artifact of a count of words."""

from baton.infra.text import number
from baton.infra.tracking.relations import Relation
from baton.tasks.artifacts import Artifact


class WordCount(Artifact):
    """`words.json`: the words of a corpus."""

    kind = "word_count"
    family = "finding"
    relation = Relation("measured")
    page = "tasks.words.page:word_count"
    words: int

    def detail(self) -> str:
        return f"{number(self.words)} words"

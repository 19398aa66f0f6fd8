"""The spec of a count of words."""

from typing import ClassVar

from pydantic import Field

from baton.tasks.core.spec import StageSpec


class WordsSpec(StageSpec):
    """Count of the words of a corpus, which are separated by spaces."""

    section: ClassVar[str] = "words"

    shortest: int = Field(1, ge=1, le=100, description="Characters of the shortest word that counts")

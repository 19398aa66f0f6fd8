"""The page of a count of words."""

from baton.tasks.pages.blocks import Block, Text
from baton.tasks.pages.source import Source


def word_count(source: Source) -> list[Block]:
    return [Text(f"The text has {source.manifest.facts['words']} words.")]

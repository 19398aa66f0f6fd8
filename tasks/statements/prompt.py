"""One question of the next-statement task: a function up to some line, and what really came next."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """A function of a module, cut before one of its statements.

    `text` is the dedented function so far; it ends in a newline and the whole indentation of the
    statement to come. `reference` is the real statement from its first character on; its later
    lines keep the dedented function's indentation, so that `text + reference` parses.
    """

    id: str  # BLAKE3 hex of source and text
    source: str  # the module it is from
    text: str
    reference: str
    module_names: frozenset[str]  # what the module binds at its top level

    @property
    def indent(self) -> str:
        """The whitespace that `text` ends in."""
        return self.text[self.text.rfind("\n") + 1 :]

    @property
    def line(self) -> int:
        """The line of `text + completion`, from 1, in which the completion begins."""
        return self.text.count("\n") + 1

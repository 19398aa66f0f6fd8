"""A partial function as readable text, in which `|` marks the place of the statement."""

from typing import Any

from statements import Prompt


def prompt(marked: str, reference: str = "", module_names: tuple[str, ...] = ()) -> Prompt:
    text, _, _ = marked.lstrip("\n").partition("|")
    return Prompt(text, frozenset(module_names), reference, "example.py")


def module(text: str, source: str = "example.py") -> dict[str, Any]:
    return {"text": text, "source": source}


AREA = prompt(
    """
def area(shape, scale=1):
    width, height = shape.size
    |""",
    module_names=("math", "Shape"),
)

"""A function so far, written as one reads it: `|` marks where the statement goes."""

from tasks.data.documents import Document, document
from tasks.statements.prompt import Prompt


def prompt(marked: str, reference: str = "", module_names: tuple[str, ...] = ()) -> Prompt:
    text, _, _ = marked.lstrip("\n").partition("|")
    return Prompt("id", "example.py", text, reference, frozenset(module_names))


def module(text: str, source: str = "example.py") -> Document:
    return document(source, text)


AREA = prompt(
    """
def area(shape, scale=1):
    width, height = shape.size
    |""",
    module_names=("math", "Shape"),
)

"""Render blocks as HTML, with the templates beside this file. Jinja2 escapes all text."""

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from baton.infra.text import encodable
from baton.tasks.pages.blocks import Block

FOLDER = Path(__file__).parent


def page(title: str, blocks: list[Block]) -> str:
    """Render a self-contained document without scripts, network requests and fonts."""
    return encodable(_template().render(title=title, blocks=blocks))


def fragment(blocks: list[Block]) -> str:
    """Render HTML with its own style for another page (a Flyte Deck)."""
    return encodable(_template().render(blocks=blocks))


def anchor(title: str) -> str:
    """Return the id of the section with this title."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["anchor"] = anchor
    environment.globals["style"] = Markup((FOLDER / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("page.html")

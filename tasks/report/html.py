"""Blocks as HTML. Everything that is not `Markup` is escaped here, whoever wrote it."""

import re
from functools import cache, singledispatch
from pathlib import Path

from markupsafe import Markup, escape

from infra.charts import Figure
from infra.text import encodable
from tasks.report.blocks import (
    Block,
    Cell,
    Code,
    Fold,
    Grid,
    List,
    Mark,
    Pieces,
    Sample,
    Section,
    Table,
    Text,
    Title,
)

PAGE = Markup("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
{style}
</head>
<body class="baton">
{contents}
<main class="content">
{body}
</main>
</body>
</html>
""")


def page(title: str, blocks: list[Block]) -> str:
    """A whole document that needs nothing but itself: no script, no network, no font."""
    return encodable(PAGE.format(title=title, style=_style(), contents=_contents(blocks), body=_all(blocks)))


def fragment(blocks: list[Block]) -> str:
    """The same inside somebody else's page (a Flyte Deck), with its own style."""
    return encodable(Markup('{}<div class="baton"><div class="content">{}</div></div>').format(_style(), _all(blocks)))


@cache
def _style() -> Markup:
    return Markup(f"<style>{Path(__file__).with_name('style.css').read_text(encoding='utf-8')}</style>")


@singledispatch
def render(block: Block) -> Markup:
    raise TypeError(f"{type(block).__name__} is no block")


def _all(blocks: list[Block]) -> Markup:
    return Markup("\n").join(render(block) for block in blocks)


@render.register
def _title(block: Title) -> Markup:
    return Markup('<header><h1>{}</h1><p class="quiet">{}</p></header>').format(block.text, block.below)


@render.register
def _text(block: Text) -> Markup:
    return Markup("<p{}>{}</p>").format(_class(block.tone), block.text)


@render.register
def _code(block: Code) -> Markup:
    return _preformatted(block.caption, block.text, "code")


@render.register
def _pieces(block: Pieces) -> Markup:
    spans = Markup("").join(
        Markup('<span class="p{}">{}</span>').format(index % 2, piece.replace("\n", "⏎\n"))
        for index, piece in enumerate(block.pieces)
    )
    return _preformatted(block.caption, spans, "pieces")


@render.register
def _table(block: Table) -> Markup:
    align = block.alignment()
    head = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(_right(align[index]), name)
        for index, name in enumerate(block.columns)
    )
    rows = Markup("\n").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup('<th scope="row">{}</th>').format(_cell(cell))
                if index == 0
                else Markup("<td{}>{}</td>").format(_right(align[index]), _cell(cell))
                for index, cell in enumerate(row)
            )
        )
        for row in block.rows
    )
    return Markup(
        '<div class="scroll" role="region" aria-label="{}" tabindex="0"><table><caption>{}</caption>'
        "<thead><tr>{}</tr></thead><tbody>\n{}\n</tbody></table></div>"
    ).format(block.caption, block.caption, head, rows)


@render.register
def _figure(block: Figure) -> Markup:
    if block.narrow is None:
        return Markup("<figure>{}</figure>").format(block.svg)
    return Markup('<figure class="wide">{}</figure><figure class="narrow">{}</figure>').format(block.svg, block.narrow)


@render.register
def _grid(block: Grid) -> Markup:
    return Markup('<div class="grid">{}</div>').format(_all(list(block.figures)))


@render.register
def _sample(block: Sample) -> Markup:
    answers = Markup("").join(
        Markup('<div class="answer"><dt>{} {}</dt><dd><pre tabindex="0"><code>{}</code></pre></dd></div>').format(
            who, _cell(remark) if remark else "", what
        )
        for who, what, remark in block.answers
    )
    return Markup(
        '<article class="sample"><h3>{}</h3><pre class="prompt" tabindex="0"><code>{}</code></pre><dl>{}</dl></article>'
    ).format(block.title, block.prompt.rstrip(), answers)


@render.register
def _fold(block: Fold) -> Markup:
    return Markup("<details><summary>{}</summary>\n{}</details>").format(block.summary, _all(block.blocks))


@render.register
def _list(block: List) -> Markup:
    rows = Markup("").join(Markup("<li>{} <code>{}</code></li>").format(*item) for item in block.items)
    return Markup("<ul>{}</ul>").format(rows)


@render.register
def _section(block: Section) -> Markup:
    return Markup('<section id="{}">\n<h2>{}</h2>\n{}\n</section>').format(
        _anchor(block.title), block.title, _all(block.blocks)
    )


def _contents(blocks: list[Block]) -> Markup:
    titles = [block.title for block in blocks if isinstance(block, Section)]
    links = Markup("\n").join(
        Markup('<a href="#{}">{}</a>').format(_anchor(title), title.split(" · ")[0]) for title in titles
    )
    return Markup('<nav aria-label="Contents">{}</nav>').format(links)


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _preformatted(caption: str, text: str, style: str) -> Markup:
    said = Markup("<figcaption>{}</figcaption>").format(caption) if caption else ""
    return Markup('<figure>{}<pre class="{}" tabindex="0"><code>{}</code></pre></figure>').format(said, style, text)


def _cell(cell: Cell) -> Markup:
    if isinstance(cell, Mark):
        return Markup("<span{}>{}</span>").format(_class(cell.tone), cell.text)
    return escape(cell)


def _class(tone: str | None) -> Markup:
    return Markup(' class="{}"').format(tone) if tone else Markup("")


def _right(letter: str) -> Markup:
    return Markup(' class="number"') if letter == "r" else Markup("")

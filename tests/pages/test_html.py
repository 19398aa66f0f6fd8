from hypothesis import given, settings
from hypothesis import strategies as st

from baton.infra.drawing.charts import bars, curves
from baton.tasks.pages.blocks import (
    Answer,
    Block,
    Code,
    Fold,
    Grid,
    List,
    Mark,
    Notes,
    Pieces,
    Sample,
    Section,
    Table,
    Text,
    Title,
)
from baton.tasks.pages.html import fragment, page
from baton.tasks.pages.markdown import markdown
from baton.tasks.report.lineage import lineage
from tests.pages.reading import Reading

HOSTILE = st.one_of(
    st.text(min_size=1, max_size=40),
    st.sampled_from(
        [
            "</code></pre><script>alert(1)</script>",
            '"><img src=x onerror=alert(1)>',
            "' onmouseover='alert(1)",
            "<!-- ",
            "]]>",
            "{0} {} {title}",
            "\ud800",
            "&lt;b&gt;",
            "```\n# not a heading",
            "| a | b |",
            "\x1b[2J\x1b]0;owned\x07",
        ]
    ),
)


def every_block(text: str) -> list[Block]:
    return [
        Title(text, text),
        Section(
            text,
            [
                Text(text, "good"),
                Notes([text, text], "bad"),
                Code(text, text),
                Pieces(text, [text, text]),
                Table(text, [text, text], [[text, Mark(text, "bad")]]),
                Grid([curves(text, {text: [(0, 1), (1, 2)], text + "2": [(0, 2)]}), bars(text, [(text, 0.5)], str)]),
                lineage([]),
                Sample(text, text, [Answer(text, text, Mark(text, "good"))], [Answer(text, text, None)]),
                Fold(text, [Text(text)]),
                List([(text, text)]),
            ],
        ),
    ]


@settings(deadline=None)
@given(HOSTILE)
def test_text_from_outside_never_becomes_markup(text: str) -> None:
    harmless = Reading(page("x", every_block("x")))
    hostile = Reading(page(text, every_block(text)))
    assert hostile.tags == harmless.tags
    assert [name for _, name, _ in hostile.attributes] == [name for _, name, _ in harmless.attributes]
    assert Reading(fragment(every_block(text))).tags == Reading(fragment(every_block("x"))).tags


@settings(deadline=None)
@given(HOSTILE)
def test_text_from_outside_is_shown_as_it_is(text: str) -> None:
    shown = Reading(fragment([Code(f"begin {text} end")])).text
    assert f"begin {text} end".encode("utf-8", "replace").decode() in shown


@settings(deadline=None)
@given(HOSTILE)
def test_nothing_that_moves_a_terminals_cursor_reaches_it(text: str) -> None:
    written = markdown(every_block(text))
    assert not [char for char in written if (ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160]


@settings(deadline=None)
@given(HOSTILE)
def test_a_code_block_in_markdown_ends_where_it_should(text: str) -> None:
    first, *_, last = markdown([Code(text)]).rstrip("\n").split("\n")
    assert first == last == "`" * len(first)
    assert len(first) >= 3 and first not in text

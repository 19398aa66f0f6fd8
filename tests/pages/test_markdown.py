from baton.tasks.pages.blocks import Answer, Fold, Mark, Sample, Section, Table, Text
from baton.tasks.pages.markdown import markdown


def test_a_table_is_padded_so_that_it_reads_in_a_terminal() -> None:
    table = Table("scores", ["measure", "base"], [["all checks", "31.2 %"], ["a|b", Mark("✓", "good")]])
    assert markdown([table]) == (
        "| measure    |   base |\n"
        "|------------|-------:|\n"
        "| all checks | 31.2 % |\n"
        "| a\\|b       |      ✓ |\n"
    )  # fmt: skip


def test_sections_are_headings_and_folds_are_left_to_the_web_page() -> None:
    assert markdown([Section("Result", [Text("Met."), Fold("more", [Text("detail")])])]) == "## Result\n\nMet.\n"


def test_a_sample_shows_the_end_of_the_prompt_and_each_answer_in_its_place() -> None:
    prompt = "def f(a):\n" + "".join(f"    b{line} = a\n" for line in range(9)) + "    "
    written = markdown(
        [Sample("m.py", prompt, [Answer("real", "return b8", None), Answer("base", "if b8:\n        pass", None)])]
    )
    assert written == (
        "```\n# m.py\n    b5 = a\n    b6 = a\n    b7 = a\n    b8 = a\n"
        "    return b8  # real\n    if b8:  # base\n        pass\n```\n"
    )

"""The places where functions are cut into prompts, and the choice of prompts."""

import ast

from rows import extract
from statements import Prompt

from tests.recipes.python_statements.examples import module


def cuts(text: str) -> list[tuple[str, str]]:
    """Return the last line of the partial function and the statement, for every cut of a module, in order."""
    prompts = extract([module(text)], seed=0, per_function=100)
    ordered = sorted(prompts, key=lambda prompt: len(prompt.text))
    return [(prompt.text.splitlines()[-2].strip(), prompt.reference) for prompt in ordered]


def only(text: str) -> Prompt:
    (prompt,) = extract([module(text)], seed=0, per_function=100)
    return prompt


def test_a_function_is_cut_before_each_of_its_statements() -> None:
    text = """
def f(x):
    y = x + 1
    return y
"""
    assert cuts(text) == [("def f(x):", "y = x + 1"), ("y = x + 1", "return y")]


def test_the_prompt_ends_in_the_statements_indentation() -> None:
    prompt = only("def f(x):\n    return x\n")
    assert prompt.text == "def f(x):\n    "
    assert prompt.reference == "return x"
    assert (prompt.indent, prompt.line) == ("    ", 2)


def test_methods_are_dedented_and_decorators_left_out() -> None:
    text = """
class C:
    class D:
        @property
        async def size(self):
            return max(
                self.a,
            )
"""
    prompt = only(text)
    assert prompt.text == "async def size(self):\n    "
    assert prompt.reference == "return max(\n        self.a,\n    )"


def test_blocks_and_their_else_branches_are_cut_too() -> None:
    text = """
def f(x):
    for i in x:
        g(i)
    else:
        h(x)
    with x:  # itself too long to ask for
        if i:
            k()
        elif x:
            l()
        else:
            m()
    def n():
        return x
"""
    statements = [statement.splitlines()[0] for _, statement in cuts(text)]
    assert statements == [
        "for i in x:",
        "g(i)",
        "h(x)",
        "if i:",
        "k()",
        "l()",
        "m()",
        "def n():",
        "return x",
    ]


def test_nothing_is_cut_below_try_match_or_an_inner_class() -> None:
    text = """
def f(x):
    try:
        a()
    except E:
        b()
    else:
        c()
    finally:
        d()
    match x:
        case 1:
            e()
    class C:
        g = x
"""
    # the try block has too many lines
    assert [statement.split()[0] for _, statement in cuts(text)] == ["match", "class"]


def test_trivial_statements_and_docstrings_are_never_asked_for() -> None:
    text = '''
def f(x):
    """Say."""
    pass
    ...
    if x:
        return
    return None
'''
    assert cuts(text) == []


def test_comments_and_blank_lines_belong_to_the_function_so_far() -> None:
    prompt = only("def f(x):\n\n    # as it is\n    return x\n")
    assert prompt.text == "def f(x):\n\n    # as it is\n    "


def test_a_statement_that_shares_its_line_is_left_out() -> None:
    assert cuts("def f(x): return x\n") == []
    assert cuts("def f(x):\n    a = x; b = x\n") == [("def f(x):", "a = x")]


def test_a_nested_decorator_is_part_of_the_statement() -> None:
    (_, statement), _ = cuts("def f(x):\n    @x\n    def g():\n        return x\n")
    assert statement == "@x\n    def g():\n        return x"


def test_long_prompts_and_statements_are_left_out() -> None:
    long_statement = "def f(x):\n    return x" + " + x" * 100
    many_lines = "def f(x):\n    return (\n" + "        x +\n" * 6 + "        x)\n"
    long_function = "def f(x):\n" + "    # so it goes\n" * 100 + "    return x\n"
    assert extract([module(text) for text in (long_statement, many_lines, long_function)], seed=0) == []
    assert len(extract([module(long_function)], seed=0, max_prompt_chars=5_000)) == 1


def test_a_comment_after_the_statement_is_not_part_of_it() -> None:
    assert only("def f(x):\n    return x  # done — naïve\n").reference == "return x"


def test_text_beyond_ascii_is_cut_at_characters_not_bytes() -> None:
    assert only('def f(x):\n    return "…é" + x; y\n').reference == 'return "…é" + x'


def test_functions_with_strings_outside_of_their_margin_are_left_out() -> None:
    assert extract([module('class C:\n    def f(x):\n        y = """\nout"""\n        return y\n')], seed=0) == []


def test_what_is_not_python_or_imports_everything_has_no_prompts() -> None:
    assert extract([module("# Title\n\nSome *prose*."), module("print 'two'")], seed=0) == []
    assert extract([module("from os import *\ndef f(x):\n    return x\n")], seed=0) == []


def test_the_modules_names_are_all_that_it_binds_at_its_top_level() -> None:
    text = """
import os.path, sys as system
from re import compile as c
a = b = 1
(d, [e, *f]), g.h = x
for i in y: j = i
with z as k: pass
try: l = 1
except E as m: n = 2
if a:
    import o
p: int = 1
class Q:
    hidden = 1
def r(hidden):
    global s
    s = hidden
    return s
[hidden for hidden in z]
"""
    prompts = extract([module(text)], seed=0)
    assert " ".join(sorted(prompts[0].module_names)) == "Q a b c d e f i j k l m n o os p r s system"


# --- the choice -----------------------------------------------------------------------------------

MANY = [
    module("".join(f"def f{i}(x):\n    a = {j}\n    b = x\n    return a\n" for i in range(10)), f"{j}.py")
    for j in range(5)
]


def test_a_text_that_several_functions_share_is_asked_once() -> None:
    first_lines = [prompt.text for prompt in extract(MANY, seed=0, per_function=3)]
    assert len(first_lines) == len(set(first_lines))
    assert first_lines.count("def f0(x):\n    ") == 1


def test_the_same_seed_gives_the_same_prompts_in_any_order_of_documents() -> None:
    assert extract(MANY, seed=1) == extract(MANY[::-1], seed=1)
    assert extract(MANY, seed=1) != extract(MANY, seed=2)


def test_a_smaller_limit_gives_a_beginning_of_the_list() -> None:
    assert extract(MANY, seed=1, limit=7) == extract(MANY, seed=1)[:7]


def test_one_prompt_a_function_unless_more_are_asked_for() -> None:
    one = [module("def f(x):\n    a = 1\n    b = x\n    return a\n")]
    assert [len(extract(one, seed=0, per_function=n)) for n in (1, 2, 3, 4)] == [1, 2, 3, 3]


def test_text_and_reference_are_what_the_module_says() -> None:
    for prompt in extract(MANY, seed=0, per_function=3):
        assert prompt.text + prompt.reference in MANY[int(prompt.source[0])]["text"]
        ast.parse(prompt.text + prompt.reference)

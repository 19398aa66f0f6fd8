"""Tests of the checks, rule by rule. AREA is a partial function; see examples.py."""

import pytest
from statements import MAX_LINES, check

from tests.recipes.python_statements.examples import AREA, prompt


def test_a_good_statement_passes_every_check() -> None:
    verdict = check(AREA, "return width * height * scale")
    assert verdict.statement == "return width * height * scale"
    assert verdict.all_checks


# --- the end of the statement ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "statement"),
    [
        ("x = width\ny = 1", "x = width"),
        ("x = width\n)garbage(", "x = width"),
        (
            "x = max(\n        width,\n        height,\n    )\n    return x",
            "x = max(\n        width,\n        height,\n    )",
        ),
        ("if width:\n        return 1\n    else:\n        return 2", "if width:\n        return 1"),
        ("if width:\n\n        # why\n        return 1", "if width:\n\n        # why\n        return 1"),
        ('x = """a\n\nb""" + width\nmore', 'x = """a\n\nb""" + width'),
        ("x = width + \\\n        height\n", "x = width + \\\n        height"),
        ("@width\n    def f():\n        return scale", "@width\n    def f():\n        return scale"),
        ("a = width; b = height\nc = 1", "a = width; b = height"),
        ("\n    return width", "return width"),
        ("return width\r\nreturn height", "return width"),
        ("return width\rreturn height", "return width"),
    ],
)
def test_the_statement_is_the_shortest_run_of_whole_lines_that_parses(completion: str, statement: str) -> None:
    verdict = check(AREA, completion)
    assert verdict.statement == statement
    assert verdict.parses and verdict.all_checks


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "   \n\n",
        "return width +",
        "return (width",
        "if width:",
        "if width:\n",
        "if width:\n    return 1",  # not indented more than the `if`
        "def __init__(self):",
        "else:\n        return 1",
        "x = 1 2",
        "     return width",  # indented more than the block
        "# nothing but a comment",
        "\nreturn width",  # outside the function
        "x = 'abc",
    ],
)
def test_without_a_whole_statement_nothing_passes(completion: str) -> None:
    verdict = check(AREA, completion)
    assert not any(verdict.four)


def test_what_does_not_parse_is_known_by_its_first_line() -> None:
    assert check(AREA, "\n  def __init__(self):\nx").statement == "def __init__(self):"


def test_going_on_with_the_statement_before_is_not_a_statement() -> None:
    after_if = prompt(
        """
def f(x):
    if x:
        x.a()
    |"""
    )
    for completion in ("elif x.b:\n        x.c()", "else:\n        x.c()", "else: x.c()"):
        assert not check(after_if, completion).parses, completion


def test_leaving_the_block_is_not_a_statement_of_the_block() -> None:
    in_loop = prompt(
        """
def f(xs):
    for x in xs:
        print(x)
        |"""
    )
    assert check(in_loop, "yield x").all_checks
    assert not check(in_loop, "\n    return xs").parses
    assert not check(in_loop, "\ndef g(xs):\n    return xs").parses


def test_a_block_that_was_just_opened_can_be_filled() -> None:
    just_opened = prompt(
        """
def f(x):
    if x is None:
        return 0
    else:
        |"""
    )
    assert check(just_opened, "return x.size").all_checks


# --- not trivial ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "completion",
    [
        "pass",
        "...",
        "return",
        "return None",
        "1",
        '"""The area."""',
        "width",
        "width, height",
        "width == height",
        "# then the area\n    return width * height",
        "pass; x = width",
        "if width: pass",
        "for each in width:\n        ...",
        "def f(self):\n        pass",
        "class C:\n        pass",
        "with width:\n        return",
        "try:\n        pass\n    finally:\n        width",
        "match width:\n        case 1:\n            pass",
    ],
)
def test_trivial_statements_parse_and_are_distinguished(completion: str) -> None:
    verdict = check(AREA, completion)
    assert verdict.parses
    assert not verdict.not_trivial
    assert not verdict.all_checks


@pytest.mark.parametrize(
    "completion",
    ["return 0", "return self", "width()", "yield", "assert width", "raise width", "del width", "x = ...", "global x"],
)
def test_statements_that_do_something_are_not_trivial(completion: str) -> None:
    assert check(AREA, completion).not_trivial


# --- defined --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "completion",
    [
        "return len(shape)",  # a builtin
        "return math.pi * scale",  # the module's import
        "return Shape(width)",  # the module's class
        "area(shape)",  # the function itself
        "total: int = width",
        'total: "list[int]" = width',
        "return [each * scale for each in shape]",
        "for row in shape: print(row)",
        "if (size := width): print(size)",
        "import os; print(os, width)",
        "return lambda x: x * scale",
        "with shape as s: s.close()",
    ],
)
def test_names_of_the_module_the_builtins_and_the_statement_itself_are_defined(completion: str) -> None:
    assert check(AREA, completion).defined


@pytest.mark.parametrize(
    "completion",
    [
        "return size",
        "width = heigth",
        "total = total + width",
        "return [each for other in shape]",
        "os.remove(shape)",
        "if width:\n        nope()",
        "del nope",
    ],
)
def test_undefined_names_are_found(completion: str) -> None:
    verdict = check(AREA, completion)
    assert verdict.parses and verdict.not_trivial
    assert not verdict.defined


def test_only_the_statements_own_lines_count() -> None:
    unknown_before = prompt(
        """
def f(x):
    y = from_elsewhere(x)
    |"""
    )
    assert check(unknown_before, "return y").defined
    assert not check(unknown_before, "return from_elsewhere(y)").defined


# --- use of the context ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "completion",
    [
        "return scale",
        "shape.size = 0, 0",
        "scale += 1",
        "print(f'{width:>{height}}')",
        "return [x for x in shape]",
        "return [x for width in [1] for x in width] + [width]",
        "def inner(width): return height",
        "def inner(width=width): return 1",
        "class Inner: x = width",
    ],
)
def test_reading_an_argument_or_a_local_is_using_the_context(completion: str) -> None:
    assert check(AREA, completion).uses_context


@pytest.mark.parametrize(
    "completion",
    [
        "return 0",
        "width = 1",
        "print(math.pi)",
        "area()",  # the function's own name is not one of its locals
        "raise ValueError('width')",
        "return lambda width: width",
        "return [width for width in range(3)]",
        "def __init__(shape):\n        shape.x = 1",
        "def inner():\n        width = 1\n        return width",
        "import shape",
    ],
)
def test_names_that_the_statement_binds_for_itself_are_not_its_context(completion: str) -> None:
    assert not check(AREA, completion).uses_context


def test_what_is_bound_inside_a_nested_scope_is_no_context_outside_of_it() -> None:
    after = prompt(
        """
def f(xs):
    ys = [x for x in xs]
    def g(z):
        w = z
    |"""
    )
    assert not check(after, "print(x, z, w)").uses_context
    assert check(after, "g(1)").uses_context


def test_inside_a_nested_function_its_names_and_the_outer_ones_are_context() -> None:
    inside = prompt(
        """
def f(xs):
    def g(z):
        w = z
        |"""
    )
    for name in ("xs", "z", "w"):
        assert check(inside, f"return {name}").all_checks, name


def test_every_kind_of_binding_counts() -> None:
    many = prompt(
        """
def f(a, /, b, *c, d, **e):
    import os.path as p, sys
    for i, (j, *k) in a: l = m = i
    with a as n: pass
    try: pass
    except E as o: pass
    if (q := a): pass
    class r: pass
    match a:
        case {"s": s, **t}: pass
        case [u, *v] as w: pass
    |"""
    )
    assert [name for name in "abcdepijklmnoqrstuvw" if not check(many, f"return {name}").uses_context] == []


# --- exploits that a policy might try -------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "parses", "not_trivial", "defined", "uses_context"),
    [
        ("def __init__(self):", False, False, False, False),
        ("def __init__(self):\n            pass", True, False, True, False),
        ("def __init__(self):\n            self.x = 1", True, True, True, False),
        ("pass", True, False, True, False),
        ("return self", True, True, True, True),  # a real statement, often right; `distinct` detects it
        ("# return self", False, False, False, False),
        ("self", True, False, True, True),
        ("if self: pass", True, False, True, True),
        ("return None  # self", True, False, True, False),
        ("print('self')", True, True, True, False),
    ],
)
def test_hacks_are_judged_as_stated(
    completion: str, parses: bool, not_trivial: bool, defined: bool, uses_context: bool
) -> None:
    method = prompt(
        """
def reset(self):
        self.count = 0
        |"""
    )
    verdict = check(method, completion)
    found = (verdict.parses, verdict.not_trivial, verdict.defined, verdict.uses_context)
    assert found == (parses, not_trivial, defined, uses_context)


# --- hostile text ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "completion",
    [
        "x = 1\0",
        "x = '\ud800'",
        "\ud800",
        "\f\f x = 1",
        "\x0c",
        "\ufeffx = 1",
        "(" * 100_000,
        "[" * 150 + "]" * 150,
        "-" * 100_000 + "1",
        "-" * 3_000 + "1",
        "not " * 900 + "width",
        "width" + ".a" * 1_900,
        "width" + "()" * 1_900,
        "lambda: " * 400 + "1",
        "1 + " * 900 + "1",
        "x = 0b" + "1" * 3_000,
        "9" * 3_900,
        "f'" + "{" * 1_000,
        "return " * 20_000,
        "if 1:\n" * 20_000,
        "# comment\n" * 20_000,
        "\n" * 100_000,
        "\t\t\treturn 1",
        "x = '\\d' is 1",
        "x" * 100_000,
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_any_text_gets_a_verdict(completion: str) -> None:
    check(AREA, completion)


def test_the_text_is_never_run() -> None:
    check(AREA, "raise SystemExit(width)")
    check(AREA, "__import__('os')._exit(width)")


def test_a_statement_has_to_end_within_the_lines_that_are_looked_at() -> None:
    long = "x = [\n" + "width,\n" * MAX_LINES + "]"
    assert not check(AREA, long).parses

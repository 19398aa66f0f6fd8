from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from baton.infra.lineage.code import split
from baton.infra.tracking.flatten import flatten, names_of

NAMES = st.text(st.sampled_from('ab."\\ '), min_size=1).filter(lambda name: "." in name or '"' not in name)


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, st.integers(), min_size=1), min_size=1))
def test_the_names_of_a_parameter_are_those_that_were_flattened(nested: dict[str, Any]) -> None:
    given_names = {(outer, inner) for outer, values in nested.items() for inner in values}
    assert {tuple(names_of(parameter)) for parameter in flatten(nested)} == given_names


def test_a_function_s_files_are_code() -> None:
    code = {"mine.py": "import helper\n", "own/helper.py": "x = 1\n"}
    function = {"function": {"name": "mine.py:f", "source": code}}
    assert split(flatten(function)) == ({"function.name": "mine.py:f"}, code)

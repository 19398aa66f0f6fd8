"""Rewards in a recipe."""

import re
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.rewards.spec import RewardSpec, rewards_problems


def spec(words: Any) -> RewardSpec:
    return RewardSpec.model_validate(words)


def problems(words: Any) -> str:
    return "\n".join(map(str, spec(words).problems()))


@pytest.fixture(autouse=True)
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums.py").write_text("def right(completions, answer): ...\ndef short(completions): ...\n")
    monkeypatch.chdir(tmp_path)


def test_a_name_is_short_for_a_function_or_a_built_in() -> None:
    assert spec("sums.py:right") == spec({"function": {"name": "sums.py:right"}})
    assert spec("math") == spec({"math": {}})
    assert spec("sums.py:right").label == "right"
    assert spec({"regex": {"pattern": "a"}, "name": "has_a"}).label == "has_a"


def test_it_comes_back_from_its_own_words() -> None:
    for words in ("sums.py:right", {"json_schema": {"schema": {"type": "object"}}}, {"diversity": {}, "weight": 0.5}):
        found = spec(words).pinned()

        assert RewardSpec.model_validate(found.model_dump(mode="json")) == found
        assert RewardSpec.model_validate_json(found.model_dump_json()) == found


def test_what_its_file_says_is_part_of_what_it_is() -> None:
    before = spec("sums.py:right").pinned().identity()
    Path("sums.py").write_text("def right(completions, answer): return [0.0]\n")

    assert spec("sums.py:right").pinned().identity() != before


def test_what_a_program_may_import_is_part_of_what_it_is() -> None:
    """The score of a program changes if it cannot import a module."""
    plain, wider = spec({"code_tests": {}}), spec({"code_tests": {"read": ["/opt/modules"]}})
    assert wider.identity() != plain.identity() == spec({"code_tests": {"read": []}}).identity()


def test_a_change_of_what_passes_tests_is_a_change_of_the_reward() -> None:
    """The identities of other rewards do not change."""
    assert spec({"code_tests": {}}).pinned().identity()["code_tests"]["rules"] == 3
    assert "rules" not in spec({"python_output": {}}).identity()["python_output"]


def test_how_it_is_reached_is_not_what_it_is() -> None:
    plain = spec({"judge": {"model": "m", "rubric": "r"}})
    elsewhere = spec(
        {"judge": {"model": "m", "rubric": "r", "url": "http://there/v1", "concurrency": 3}, "timeout_s": 9.0}
    )

    assert elsewhere.identity() == plain.identity()
    assert spec({"judge": {"model": "m", "rubric": "s"}}).identity() != plain.identity()
    what, how = elsewhere.split_options()
    assert what == plain
    assert what.with_options(how) == elsewhere


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "exactly one of function, math, match"),
        ({"math": {}, "match": {}}, "got math and match"),
        ("sums.py:nothing", "function.name: 'sums.py:nothing': a function of sums.py: right, short"),
        ({"regex": {"pattern": "("}}, "regex.pattern: .*a regular expression in Python's syntax"),
        ({"json_schema": {"schema": {"type": "objekt"}}}, "json_schema.schema: .*objekt"),
        ({"length": {}}, "set at_least, at_most or both"),
        ({"length": {"at_least": 5, "at_most": 4}}, r"at least at_least \(5\)"),
        ({"judge": {"model": "m", "rubric": "r", "lowest": 3, "highest": 3}}, r"more than lowest \(3\)"),
        ({"diversity": {}, "weight": 2.0}, "0 to 1: the largest fraction of the other rewards"),
    ],
)
def test_what_is_wrong_with_one(words: Any, message: str) -> None:
    assert re.search(message, problems(words))


@pytest.mark.parametrize("words", ["sums.py:right", "math", {"length": {"at_most": 3}}, "statistics:mean"])
def test_what_is_right(words: Any) -> None:
    assert problems(words) == ""


@pytest.mark.parametrize(
    "words", [{"function": "sums.py"}, {"maths": {}}, {"match": {"weight": 1}}, {"format": {"tags": []}}, 3]
)
def test_what_cannot_be_read(words: Any) -> None:
    with pytest.raises(ValueError, match="RewardSpec"):
        spec(words)


def test_several_have_names_of_their_own_and_one_that_counts() -> None:
    (same,) = rewards_problems([spec("match"), spec("match")])
    (alone,) = rewards_problems([spec("diversity")])

    assert same.path == "1.name" and "rewards.0 has the same name; set `name:` of one of them" in same.allowed
    assert "another reward beside diversity" in alone.allowed
    assert rewards_problems([spec("match"), spec({"match": {}, "name": "again"}), spec("diversity")]) == []


@pytest.mark.parametrize("kind", ["code_tests", "python_output", "program"])
def test_the_folders_that_programs_may_read_are_part_of_what_a_reward_is(kind: str, tmp_path: Path) -> None:
    """Programs that cannot import a package score 0."""
    tmp_path.joinpath("check.py").write_text("print(1.0)\n")
    fields = {"file": str(tmp_path / "check.py")} if kind == "program" else {}

    assert spec({kind: fields | {"read": ["/opt/packages"]}}).identity() != spec({kind: fields}).identity()


def test_the_names_of_its_variables_are_part_of_what_it_is() -> None:
    named = {"function": "sums.py:right", "environment": ["LEVEL"]}

    assert spec(named).identity() != spec("sums.py:right").identity()


def test_an_editor_knows_both_forms() -> None:
    schema = RewardSpec.model_json_schema()

    assert {"type": "string"} in (schema.get("anyOf") or schema["$defs"]["RewardSpec"]["anyOf"])


def test_how_long_a_reward_may_take_is_no_part_of_what_a_stage_makes() -> None:
    def identity(**how: float) -> dict[str, object]:
        return GRPOSpec.model_validate({"data": "sums", "rewards": [{"math": {}, **how}]}).identity()

    assert identity() == identity(timeout_s=5.0) != identity(weight=0.5)

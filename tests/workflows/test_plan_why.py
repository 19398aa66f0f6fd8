"""The plan names the stages that run after an edit, and why."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flytekit import dynamic
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.infra.tracking.execution import end_execution
from baton.tasks.report.artifact import Report
from baton.workflows.plan.planned import Planned, plan
from baton.workflows.plan.text import text
from baton.workflows.pretrain_to_rl import dag
from baton.workflows.recipe import Recipe, context_of

KEEP = """\
from limits import LEAST, UNUSED


def keep(text, **kwargs):
    return len(text) >= LEAST


def other(text):
    return UNUSED
"""
LIMITS = "LEAST = 3\nUNUSED = 1\n"
COUNT = """\
import pydantic


class Words(pydantic.BaseModel):
    least: int = 1


def count(spec: Words, inputs, output, job):
    (output / "count.txt").write_text("3")
    return {"words": 3 + spec.least}
"""
RECIPE: dict[str, Any] = {
    "name": "why",
    "corpus": {"source": {"kind": "jsonl", "path": "text.jsonl"}, "curate": [{"function": "keep.py:keep"}]},
    "tokenizer": {"vocab_size": 264},
    "stages": [
        {"name": "counted", "stage": "count.py:count", "inputs": ["corpus"], "makes": "artifact", "spec": {"least": 2}}
    ],
}
# Edits of a file or a field, with the stages that depend on it themselves
EDITS: dict[str, tuple[str, str, Any, set[str]]] = {
    "a comment": ("keep.py", "\n\n\ndef keep", "\n\n\n# why\ndef keep", set()),
    "a blank line": ("count.py", "\n    (output", "\n\n    (output", set()),
    "quotes": ("count.py", '"count.txt"', "'count.txt'", set()),
    "parentheses and line breaks": ("keep.py", "len(text) >= LEAST", "(\n        len(text) >= LEAST\n    )", set()),
    "a function that is not used": ("keep.py", "return UNUSED", "return UNUSED + 1", set()),
    "a constant that is not used": ("limits.py", "UNUSED = 1", "UNUSED = 2", set()),
    "a default that is set": ("recipe", "tokenizer.pattern", "lines", {"tokenizer"}),
    "an operator": ("keep.py", ">=", ">", {"corpus"}),
    "a constant": ("limits.py", "LEAST = 3", "LEAST = 2", {"corpus"}),
    "a line of a stage": ("count.py", "3 + spec.least", "4 + spec.least", {"counted"}),
    "a field of a stage": ("recipe", "stages.0.spec.least", 3, {"counted"}),
    "a field of the tokenizer": ("recipe", "tokenizer.vocab_size", 265, {"tokenizer"}),
    "the rows of the corpus": ("recipe", "corpus.source.path", "more.jsonl", {"corpus"}),
    "a placement's detail": ("recipe", "stages.0.hours", 2.0, set()),
}
AFTER = {"corpus": {"tokenizer", "counted"}}
FOLDER: list[Path] = []  # with the text, of which a copy is another
FILES = {
    "keep.py": KEEP, "limits.py": LIMITS, "count.py": COUNT,
}  # fmt: skip


def edited(folder: Path, *names: str) -> Recipe:
    """The recipe in a folder of its own, after these edits."""
    folder.mkdir(parents=True, exist_ok=True)
    files, recipe = dict(FILES), Recipe.model_validate(RECIPE).model_dump(mode="json", exclude_unset=True)
    for name in names:
        place, before, after, _ = EDITS[name]
        if place != "recipe":
            files[place] = files[place].replace(before, after)
            continue
        *path, last = [int(part) if part.isdigit() else part for part in before.split(".")]
        part: Any = recipe
        for key in path:
            part = part[key]
        part[last] = after
    for name, content in files.items():
        (folder / name).write_text(content)
    source = recipe["corpus"]["source"]
    source["path"] = str(FOLDER[0] / source["path"])
    recipe["corpus"]["curate"][0]["function"] = f"{folder}/keep.py:keep"
    recipe["stages"][0]["stage"] = f"{folder}/count.py:count"
    return Recipe.model_validate(recipe)


@pytest.fixture(scope="module", autouse=True)
def _has_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The recipe has run."""
    FOLDER[:] = [tmp_path_factory.mktemp("text")]
    for name in ("text", "more"):
        lines = (json.dumps({"text": f"one two three {name} {number}"}) for number in range(40))
        (FOLDER[0] / f"{name}.jsonl").write_text("\n".join(lines))
    recipe = edited(tmp_path_factory.mktemp("why"))
    has_run(recipe=recipe)
    end_execution("FINISHED")


@dynamic
def has_run(recipe: Recipe) -> Report:
    return dag(recipe)


def planned(recipe: Recipe) -> dict[str, Planned]:
    return {step.name: step for step in plan(recipe, context_of(recipe), None)}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from(sorted(EDITS)), max_size=4, unique=True))
def test_the_plan_names_exactly_the_stages_that_depend_on_an_edit(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    direct = {title for name in names for title in EDITS[name][3]}
    expected = direct.union(*(AFTER.get(title, set()) for title in direct))
    stages = planned(edited(tmp_path_factory.mktemp("edited"), *names))
    cacheable = stages.keys() & {"corpus", "tokenizer", "counted"}
    assert {title for title in cacheable if not stages[title].cached} == expected
    assert {title for title in cacheable if stages[title].why} == expected


@pytest.mark.parametrize(
    ("name", "title", "reason"),
    [
        ("an operator", "corpus", "curate.0.function: keep.py, line 5: return len(text) > LEAST (in keep)"),
        ("a constant", "corpus", "curate.0.function: limits.py, line 1: LEAST = 2"),
        ("an operator", "counted", "corpus runs again"),
        ("a line of a stage", "counted", 'function: count.py, line 10: return {"words": 4 + spec.least} (in count)'),
        ("a field of a stage", "counted", "spec.least: 3, before 2"),
        ("a field of the tokenizer", "tokenizer", "vocab_size: 265, before 264"),
    ],
)
def test_the_plan_says_why(tmp_path: Path, name: str, title: str, reason: str) -> None:
    stages = planned(edited(tmp_path, name))
    assert stages[title].why == reason
    assert any(re.search(f"^  {title} +{re.escape(reason)}$", line) for line in text("why", [*stages.values()]))


def test_the_plan_says_which_text_is_another(tmp_path: Path) -> None:
    why = planned(edited(tmp_path, "the rows of the corpus"))["corpus"].why
    assert re.match(r'source.path: ".*, before ".*; state: "[0-9a-f]{12}…", before ', why)


def test_a_stage_that_has_not_run_has_no_reason(tmp_path: Path) -> None:
    recipe = edited(tmp_path)
    other = recipe.stages[0].model_copy(update={"name": "never"})
    assert planned(recipe.model_copy(update={"stages": [other]}))["never"].why == ""

"""Checks of the first rows, for a recipe that starts from a local model."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.spec import Problem
from baton.workflows.checks.table import checked
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError
from tests.posttrain.tiny import tiny_model

ASKED = {"role": "user", "content": "2 + 2?"}
SAID = {"role": "assistant", "content": "4."}
UNMARKED = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
NOT_THE_ASSISTANT = (
    "{% for m in messages %}{% if m.role == 'bot' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def talk(words: int = 1) -> dict[str, Any]:
    return {"messages": [ASKED, {"role": "assistant", "content": " ".join(["zq"] * words)}]}


@pytest.fixture
def problems(tmp_path: Path) -> Callable[..., list[Problem]]:
    """Return the problems of a recipe with one stage on some rows, from a model with 256 positions."""
    tiny_model(tmp_path / "model", turns=True)

    def of(rows: Iterable[Any], stage: str = "sft", template: str | None = None, **more: Any) -> list[Problem]:
        if template:
            (tmp_path / "model/chat_template.jinja").write_text(template)
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = {
            "start_from": {"model": str(tmp_path / "model")},
            "data": {
                "rows": {
                    "path": str(tmp_path / "rows.jsonl"),
                    "held_out": more.pop("held_out", 0.1 if "evaluate" in more else 0.0),
                    "faulty": more.pop("faulty", "refuse"),
                }
            },
            "evaluate": more.pop("evaluate", None),
            "post_training": [{stage: {"data": "rows", **more}}],
        }
        try:
            checked(Recipe.model_validate(recipe))
        except RecipeError as error:
            return error.problems
        return []

    return of


def test_sound_chat_passes_and_a_model_without_a_template_is_named(
    problems: Callable[..., list[Problem]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert problems([talk()]) == []
    assert problems([talk()]) == []  # the recipe is checked again where the execution starts
    assert capsys.readouterr().err.count("start_from.model has no chat template: ChatML is used") == 1


@pytest.mark.parametrize(
    ("row", "loss", "words"),
    [
        (talk(), "completion", "rows of kind messages allow assistant or all"),
        ({"prompt": "a", "completion": "b"}, "assistant", "rows of kind prompt_completion allow completion or all"),
        ({"text": "a"}, "completion", "rows of kind text allow all"),
        ({"messages": [ASKED, SAID | {"train": False}, ASKED, SAID]}, "all", "some turns of the rows are not to be"),
        (talk(), "all", None),
    ],
)
def test_a_loss_that_the_rows_do_not_have_is_known_before_a_model_is_pretrained(
    row: dict[str, Any], loss: str, words: str | None, tmp_path: Path
) -> None:
    found = before_pretraining(tmp_path, row, post_training=[{"sft": {"data": "rows", "loss": loss}}])
    assert [problem.path for problem in found] == ["post_training.0.sft.loss"] * bool(words)
    assert (words or "") in "".join(problem.allowed for problem in found)


def before_pretraining(folder: Path, row: dict[str, Any], **sections: Any) -> list[Problem]:
    """Return the problems of a recipe that pretrains the model, so that there is no tokenizer yet."""
    many = (
        json.dumps(row).replace("2 + 2", f"{number} + 2").replace("plain", f"plain {number}") for number in range(40)
    )
    (folder / "rows.jsonl").write_text("".join(f"{line}\n" for line in many))
    recipe = {
        "corpus": {"source": {"kind": "stdlib"}},
        "tokenizer": {"vocab_size": 300},
        "shards": {},
        "pretrain": {"steps": 2},
        "convert": {},
        "data": {"rows": {"path": str(folder / "rows.jsonl"), "held_out": 0.2}},
    }
    try:
        checked(Recipe.model_validate(recipe | sections))
    except RecipeError as error:
        return error.problems
    return []


REWARDS = [{"length": {"at_most": 3}}]


@pytest.mark.parametrize(
    ("row", "sections", "words"),
    [
        (
            {"messages": [ASKED, SAID, ASKED, SAID | {"train": False}]},
            {"post_training": [{"grpo": {"data": "rows", "rewards": REWARDS}}]},
            "the last turn of a row is not to be learned",
        ),
        (
            {"messages": [ASKED, SAID, ASKED, SAID | {"train": False}]},
            {"post_training": [{"dpo": {"data": "rows", "pairs": {"rewards": REWARDS, "samples": 2}}}]},
            "the last turn of a row is not to be learned",
        ),
        ({"text": "plain"}, {"evaluate": {"asked": {"data": "rows", "rewards": REWARDS}}}, "and no prompt"),
    ],
)
def test_rows_that_cannot_be_asked_are_known_before_a_model_is_pretrained(
    row: dict[str, Any], sections: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (problem,) = before_pretraining(tmp_path, row, **sections)
    assert words in problem.allowed


def test_rows_that_are_left_out_need_not_be_asked(tmp_path: Path) -> None:
    turns = [[ASKED | {"content": f"{n}?"}, SAID, ASKED, SAID | {"train": n < 9}] for n in range(40)]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns))
    for faulty, wrong in (("drop", 0), ("refuse", 1)):
        found = before_pretraining(
            tmp_path,
            {"text": "plain"},
            data={"rows": {"path": str(tmp_path / "more.jsonl"), "held_out": 0.2, "faulty": faulty}},
            post_training=[{"grpo": {"data": "rows", "rewards": REWARDS}}],
        )
        assert len(found) == wrong


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (UNMARKED, "has no {% generation %} marks"),
        (NOT_THE_ASSISTANT, "marks no token of a turn that is to be learned"),
        ("{% generation %}{{ raise_exception('no chat') }}{% endgeneration %}", "rejects a row: no chat"),
    ],
    ids=["no marks", "an empty mask", "a refusal"],
)
def test_what_the_chat_template_cannot_do_is_reported(
    problems: Callable[..., list[Problem]], template: str, words: str
) -> None:
    (problem,) = problems([talk()], template=template)
    assert problem.path == "post_training.0.sft.data" and words in problem.allowed


def test_a_tokenizer_that_does_not_load_is_reported(problems: Callable[..., list[Problem]], tmp_path: Path) -> None:
    (tmp_path / "model/tokenizer.json").write_text("{}")
    (problem,) = problems([talk()])
    assert problem.path == "start_from.model" and "a folder whose tokenizer can be loaded" in problem.allowed


def test_a_role_that_nobody_knows_is_reported_with_its_line(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems([talk(), {"messages": [{"role": "robot", "content": "a"}, SAID]}])
    assert problem.path == "data.rows.path" and "line 2: messages[0].role: one of system," in problem.allowed


NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
REFUSED = {"messages": [{"role": "system", "content": "Be brief."}, *talk()["messages"]]}


@pytest.mark.parametrize("place", [3, 150])
def test_a_row_that_the_template_rejects_is_reported_wherever_it_is(
    problems: Callable[..., list[Problem]], place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [talk(number % 7 + 1) for number in range(200)]
    rows[place] = REFUSED
    (problem,) = problems(rows, template=NO_SYSTEM)
    assert "rejects a row: no system role" in problem.allowed
    assert problems(rows, template=NO_SYSTEM, faulty="drop") == []
    assert f"1 row is refused and left out: rows.jsonl, line {place + 1}" in (capsys.readouterr().err)


def test_rows_of_which_the_template_rejects_all_are_reported(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems([REFUSED], template=NO_SYSTEM, faulty="drop")
    assert problem.path == "post_training.0.sft.data" and "it rejects all of the first" in problem.allowed


def test_what_the_template_does_not_print_is_reported(
    problems: Callable[..., list[Problem]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert problems([{"messages": [ASKED, SAID | {"reasoning_content": "Hm."}]}]) == []
    assert "does not print reasoning_content of messages in 1 of 1 places" in capsys.readouterr().err


def test_completions_of_kto_are_no_rows_to_learn(problems: Callable[..., list[Problem]]) -> None:
    rows = [{"prompt": [ASKED], "completion": [SAID], "label": number % 2 == 0} for number in range(4)]
    (problem,) = problems(rows)
    assert problem.path == "post_training.0.sft.data"
    assert "2 of the first 4 rows are not: label: False" in problem.allowed
    pairs = {"rewards": ["match"], "chosen": "gold"}
    assert "label: False" in problems([row | {"answer": "4"} for row in rows], stage="dpo", pairs=pairs)[0].allowed


@pytest.mark.parametrize("place", [3, 150])
@pytest.mark.parametrize(("stage", "label"), [("kto", None), ("sft", False)])
def test_a_label_that_cannot_be_used_is_a_faulty_row(
    problems: Callable[..., list[Problem]], place: int, stage: str, label: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"prompt": f"{n} + 1?", "completion": f" {n + 1}", "label": stage == "sft" or n % 2 == 0} for n in range(200)
    ]
    rows[place]["label"] = label
    (problem,) = problems(rows, stage=stage)
    assert f"label: {label}" in problem.allowed and "or `faulty: drop`" in problem.allowed
    assert problems(rows, stage=stage, faulty="drop") == []
    assert f"1 row is refused and left out: rows.jsonl, line {place + 1}: label: {label}" in capsys.readouterr().err


def test_a_small_set_with_one_label_is_reported(
    problems: Callable[..., list[Problem]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"{number} + 1?", "completion": " 5", "label": True} for number in range(9)]
    assert problems(rows, stage="kto") == []
    assert "data.rows: all 9 completions have label True: KTO learns from both kinds" in capsys.readouterr().err


def test_labels_of_which_none_can_be_used_are_reported(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems([{"prompt": "a", "completion": "b"}] * 3, stage="kto", faulty="drop")
    assert "3 of the first 3 rows are not: there is a row without the column label" in problem.allowed


def test_a_set_of_which_most_would_be_left_out_is_reported(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems([talk(300), talk(301), talk()])
    assert problem.path == "post_training.0.sft.max_prompt_tokens"
    assert problem.allowed.startswith("2 of the first 3 rows are longer than 256 tokens in all (the longest has ")


def test_some_long_rows_are_reported_and_left_out(
    problems: Callable[..., list[Problem]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert problems([talk(300), talk(1), talk(2)]) == []
    assert "1 of the first 3 rows are longer than 256 tokens in all" in capsys.readouterr().err


def test_limits_that_the_recipe_gives_may_leave_out_most_but_not_all(problems: Callable[..., list[Problem]]) -> None:
    short = {"max_prompt_tokens": 30, "max_new_tokens": 10}
    assert problems([talk(300), talk(301), talk()], **short) == []
    (problem,) = problems([talk(300), talk(301)], **short)
    assert "2 of the first 2 rows are longer than max_prompt_tokens 30 and max_new_tokens 10" in problem.allowed


def test_preferences_are_as_long_as_the_longer_answer(problems: Callable[..., list[Problem]]) -> None:
    rows = [{"prompt": [ASKED], "chosen": [SAID], "rejected": talk(300)["messages"][1:]}]
    (problem,) = problems(rows, stage="dpo")
    assert problem.path == "post_training.0.dpo.max_prompt_tokens"


def test_prompts_beyond_the_positions_are_counted(problems: Callable[..., list[Problem]]) -> None:
    rows = [{"prompt": [{"role": "user", "content": "zq " * 300}], "answer": "a"}]
    evaluate = {"mine": {"data": "rows", "rewards": ["match"]}}
    found = problems(rows, stage="grpo", rewards=["match"], evaluate=evaluate)
    assert [each.path for each in found] == ["post_training.0.grpo.max_prompt_tokens", "evaluate.mine.max_new_tokens"]
    assert "1 of the first 1 prompts are longer than the model's 256 positions" in found[1].allowed


def test_an_evaluator_needs_rows_that_ask_and_are_held_out(problems: Callable[..., list[Problem]]) -> None:
    evaluate = {"mine": {"data": "rows", "rewards": [{"length": {"at_most": 9}}]}}
    (nothing,) = problems([{"text": "a"}], evaluate=evaluate)
    assert nothing.path == "evaluate.mine.data" and "no prompt" in nothing.allowed
    (none,) = problems([talk()], evaluate=evaluate, held_out=0.0)
    assert none.path == "evaluate.mine.data" and "held_out is 0" in none.allowed
    learned = {"mine": evaluate["mine"] | {"train_prompts": 8}}
    assert "evaluate.mine.train_prompts" in [each.path for each in problems([talk()], evaluate=learned, held_out=1.0)]


def test_too_few_held_out_rows_are_reported(
    problems: Callable[..., list[Problem]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"{number}?", "answer": "a"} for number in range(20)]
    evaluate = {"mine": {"data": "rows", "rewards": ["match"], "prompts": 19}}
    (none,) = problems(rows[:1], stage="grpo", rewards=["match"], evaluate=evaluate, held_out=0.001)
    assert none.path == "data.rows.held_out" and "0 of the 1 rows of data.rows are held out" in none.allowed
    assert problems(rows, stage="grpo", rewards=["match"], evaluate=evaluate, held_out=0.5) == []
    assert "evaluate.mine.prompts: 19: " in (said := capsys.readouterr().err)
    assert "of the 20 rows of data.rows are held out: raise data.rows.held_out, or lower prompts" in said


def test_a_set_whose_rows_all_fall_into_one_split_is_refused_before_the_run(
    problems: Callable[..., list[Problem]],
) -> None:
    """This includes a set with more rows than the first check reads."""
    rows = [talk() | {"messages": [ASKED | {"content": f"{number} + 2?"}, SAID]} for number in range(100)]
    (none,) = problems(rows[:40], held_out=0.001)
    assert none.path == "data.rows.held_out"
    assert "0 of the 40 rows of data.rows are held out" in none.allowed
    assert "distinct prompts: 40); 0.05 holds out some, 0 none, 1 all" in none.allowed
    (none,) = problems(rows, held_out=0.0001)
    assert "0 of the 100 rows" in none.allowed
    (all_of_them,) = problems(rows[:40], held_out=0.999)
    assert "40 of the 40 rows" in all_of_them.allowed
    (alike,) = problems([talk(words) for words in range(1, 5)], held_out=0.5)
    assert "distinct prompts: 1); 0 holds out none, 1 all" in alike.allowed
    assert problems(rows, held_out=0.05) == problems(rows[:40], held_out=0.0) == []


@pytest.fixture
def of_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Problem]]:
    """Return the problems of a DPO stage on the rows of a user's function."""
    monkeypatch.chdir(tmp_path)

    def of(body: str) -> list[Problem]:
        Path("mine.py").write_text(f"def rows():\n    {body}\n")
        data = {"rows": {"function": "mine.py:rows"}}
        try:
            checked(
                Recipe.model_validate(
                    {"start_from": {"model": "model"}, "data": data, "post_training": [{"dpo": {"data": "rows"}}]}
                )
            )
        except RecipeError as error:
            return error.problems
        return []

    tiny_model(tmp_path / "model", turns=True)
    return of


def test_a_function_s_first_rows_are_looked_at_in_a_process_of_its_own(
    of_a_function: Callable[[str], list[Problem]],
) -> None:
    pairs = "yield from ({'prompt': str(n), 'chosen': 'a', 'rejected': 'b'} for n in range(10**9))"
    assert of_a_function(f"print('printed'); {pairs}") == []
    (problem,) = of_a_function("yield {'prompt': 'a', 'completion': 'b'}")
    assert problem.path == "post_training.0.dpo.data" and "those of this set are prompt_completion" in problem.allowed


def test_the_rows_of_a_data_set_s_folder_are_looked_at(tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list([{"prompt": "a", "completion": "b"}]).save_to_disk(tmp_path / "set")
    tiny_model(tmp_path / "model", turns=True)
    data = {"rows": {"huggingface": {"name": str(tmp_path / "set")}}}
    recipe = {"start_from": {"model": str(tmp_path / "model")}, "data": data}
    with pytest.raises(RecipeError, match="those of this set are prompt_completion"):
        checked(Recipe.model_validate(recipe | {"post_training": [{"dpo": {"data": "rows"}}]}))


def test_a_function_that_fails_is_reported_with_its_line(of_a_function: Callable[[str], list[Problem]]) -> None:
    (problem,) = of_a_function("yield {'prompt': 1 / 0}")
    assert problem.path == "data.rows.function" and "division by zero" in problem.allowed

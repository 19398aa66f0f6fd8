"""No training row has the prompt of a held-out row."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.core.job import StageError
from baton.tasks.rows.decontaminate import COMMON, PromptIndex
from tests.rows.by_hand import decontaminated, digest, facts, jsonl, notices, prepared, record, split

LONG = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May"
INSTRUCTION = "Read the question below, think step by step, and write the answer on the last line of your reply."


def evidence(held_out: dict[str, Any], row: dict[str, Any], others: int = 0, shared: str = "") -> str:
    """Return the rule that a row violates, given `others`."""
    known = PromptIndex([held_out])
    for other in [row, *({"prompt": f"{shared} {number}"} for number in range(others))]:
        known.note(other)
    return known.evidence(row)


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (LONG, "prompt"),
        (LONG.upper() + "  ", "prompt"),
        (f"Solve this. {LONG}. Show your work.", "13 words"),
        (LONG.replace(",", " —").replace("clips", "'clips'"), "13 words"),
        (" ".join(LONG.split()[:13]), "13 words"),
        (" ".join(LONG.split()[:12]), ""),
        (LONG.replace("friends", "cousins").replace("half", "twice"), ""),
    ],
    ids=["the same", "but for case", "within another", "other punctuation", "13 words", "12 words", "other words"],
)
def test_13_words_in_a_row_or_the_whole_prompt(asked: str, rule: str) -> None:
    assert evidence({"prompt": LONG}, {"prompt": asked}) == rule


def test_a_short_prompt_is_compared_as_a_whole() -> None:
    assert evidence({"prompt": "What is 3 + 5?"}, {"prompt": "what is  3 + 5?"}) == "prompt"
    assert evidence({"prompt": "What is 3 + 5?"}, {"prompt": "What is 3 - 5?"}) == ""


def test_an_instruction_that_many_rows_begin_with_is_no_evidence() -> None:
    held_out, row = {"prompt": f"{INSTRUCTION} Why?"}, {"prompt": f"{INSTRUCTION} When?"}
    assert evidence(held_out, row, others=COMMON, shared=INSTRUCTION) == ""
    assert evidence(held_out, row, others=COMMON - 1, shared=INSTRUCTION) == "13 words"


def test_what_the_user_asks_is_compared_system_prompts_and_answers_are_not() -> None:
    def chat(system: str, user: str, assistant: str) -> dict[str, Any]:
        roles = {"system": system, "user": user, "assistant": assistant}
        return {"messages": [{"role": role, "content": text} for role, text in roles.items()]}

    assert evidence(chat(LONG, "Why?", LONG), chat(LONG, "When?", LONG)) == ""
    assert evidence(chat("", LONG, "a"), chat("", f"Now then: {LONG}", "b")) == "13 words"
    assert evidence({"prompt": [{"role": "user", "content": LONG}]}, {"prompt": LONG}) == "prompt"


def test_chinese_characters_are_words() -> None:
    assert (
        evidence({"text": "一二三四五六七八九十甲乙丙丁"}, {"text": "问：一二三四五六七八，九十甲乙丙"}) == "13 words"
    )


@given(st.lists(st.sampled_from("abc"), min_size=13, max_size=30), st.data())
def test_any_13_words_of_a_held_out_prompt_are_found(letters: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(letters) - 13))
    row = {"prompt": " ".join(["before", *letters[at : at + 13], "after"])}
    assert evidence({"prompt": " ".join(letters)}, row) == "13 words"


@given(
    st.lists(st.sampled_from("ab"), min_size=13, max_size=40), st.lists(st.sampled_from("ab"), min_size=13, max_size=40)
)
def test_found_is_what_a_search_for_the_words_finds(one: list[str], other: list[str]) -> None:
    windows = {tuple(one[at : at + 13]) for at in range(len(one) - 12)}
    shared = any(tuple(other[at : at + 13]) in windows for at in range(len(other) - 12))
    assert (evidence({"prompt": " ".join(one)}, {"prompt": " ".join(other)}) != "") == shared


# The engines


def near_copies(folder: Path) -> Path:
    """Return 300 questions, each alone and within a longer prompt."""
    names = [" ".join(f"{word}{number}" for word in LONG.split()) for number in range(300)]
    return jsonl(
        folder / "rows.jsonl", *({"prompt": prompt} for name in names for prompt in (name, f"Please solve: {name}"))
    )


def test_a_set_s_own_held_out_part_is_kept_out_of_its_training_part(tmp_path: Path) -> None:
    rows = prepared(tmp_path / "job", path=str(near_copies(tmp_path)), held_out=0.3)
    train = [row["prompt"].removeprefix("Please solve: ") for row in split(rows, "train")]
    held_out = [row["prompt"].removeprefix("Please solve: ") for row in split(rows, "held_out")]
    assert not set(train) & set(held_out)
    assert facts(rows)["contaminated"] == 600 - len(train) - len(held_out) > 50
    assert facts(rows)["rows"] == len(train)
    first = record(rows)["first_contaminated"][0]
    assert first["rule"] == "13 words" and first["asked"].startswith(("Please", "Natalia"))


@pytest.mark.parametrize(("variants", "told"), [(COMMON, False), (2 * COMMON, True)])
def test_many_variants_of_a_held_out_prompt_stay_and_are_reported(variants: int, told: bool, tmp_path: Path) -> None:
    prompts = [f"Style {number}: {LONG}" for number in range(variants)] + ["How?"]
    rows = [{"prompt": prompt} for prompt in prompts]
    against = [{"prompt": f"Question: {LONG}"}, {"prompt": "Why?"}]
    train = prepared(tmp_path / "train", path=str(jsonl(tmp_path / "rows.jsonl", *rows)), held_out=0)
    held_out = prepared(tmp_path / "held_out", path=str(jsonl(tmp_path / "exam.jsonl", *against)), held_out=1)
    made = decontaminated(tmp_path / "job", train, held_out)
    assert facts(made)["contaminated"] == (0 if told else variants)
    assert len(told_of := notices(made)) == told and all(f"{variants} training rows share" in each for each in told_of)


def test_the_held_out_parts_of_other_sets_are_kept_out_too(tmp_path: Path) -> None:
    questions = [{"prompt": f"Question {number}?", "completion": "a"} for number in range(100)]
    chats = [
        {"messages": [{"role": "user", "content": f"Question {number}?"}, {"role": "assistant", "content": "b"}]}
        for number in range(50, 150)
    ]
    one = prepared(tmp_path / "one", path=str(jsonl(tmp_path / "one.jsonl", *questions)), held_out=0.3)
    two = prepared(tmp_path / "two", path=str(jsonl(tmp_path / "two.jsonl", *chats)), held_out=0.3, seed=1)
    clean = decontaminated(tmp_path / "clean", two, one)
    evaluated = {row["prompt"] for row in split(one, "held_out")}
    kept = [row for row in split(two, "train") if row["messages"][0]["content"] not in evaluated]
    assert split(clean, "train") == kept and len(kept) < facts(two)["rows"]
    assert split(clean, "held_out") == split(two, "held_out")
    assert facts(clean)["rows"] == len(kept) == record(clean)["rows"]
    assert facts(clean)["contaminated"] == facts(two)["rows"] - len(kept)
    assert digest(decontaminated(tmp_path / "again", clean, one, two)) != ""
    assert split(tmp_path / "again" / "output", "train") == kept


def test_a_set_contaminated_by_its_own_held_out_split_is_refused(tmp_path: Path) -> None:
    rows = [{"prompt": f"{LONG} {number}"} for number in range(8)]
    with pytest.raises(StageError, match="training rows occur in a held-out set"):
        prepared(tmp_path / "job", path=str(jsonl(tmp_path / "rows.jsonl", *rows)), held_out=0.5)


def test_a_set_without_a_row_left_is_refused(tmp_path: Path) -> None:
    source = str(jsonl(tmp_path / "rows.jsonl", {"text": "a"}, {"text": "b"}))
    train = prepared(tmp_path / "train", path=source, held_out=0.0)
    held_out = prepared(tmp_path / "held_out", path=source, held_out=1.0)
    with pytest.raises(StageError, match="all 2 training rows occur in a held-out set, such as 'a'"):
        decontaminated(tmp_path / "job", train, held_out)

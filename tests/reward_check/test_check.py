"""Rewards are tried on the rows' own answers as soon as there are rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.job import StageError, open_job
from baton.tasks.core.manifest import write_manifest
from baton.tasks.pages.deck import stage_page
from baton.tasks.reward_check.artifact import RewardCheck
from baton.tasks.reward_check.check import work
from baton.tasks.reward_check.spec import RewardCheckSpec
from baton.tasks.reward_check.task import SMALL
from tests.pretrain.tiny import write_job

SUMS = [{"prompt": f"{n} + {n} =", "answer": str(2 * n)} for n in range(10)]
CHAT = [
    {"messages": [{"role": "user", "content": f"{n} + {n}?"}, {"role": "assistant", "content": str(2 * n)}]}
    for n in range(10)
]
FUNCTIONS = """
def right(completions, completion, **columns):
    return [float(one == each) for one, each in zip(completions, completion)]

def wrong(completions, prompts, answer, **columns):
    return [float(one == each) for one, each in zip(completions, prompts)]

def fails(completions, answer):
    return [1 / 0 for each in completions]

def fails_once(completions, answer):
    return [1 / (one != "8") for one in completions]

def fails_anyway(completions, **columns):
    return [1 / 0 for each in completions]

def number(completions, **columns):
    return [float(each) for each in completions]

def imports_late(completions, answer):
    import nowhere_installed

def tokens(completions, completion_ids, answer):
    return [float(len(ids)) for ids in completion_ids]
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)


def rows(name: str, some: list[dict[str, Any]], split: str) -> Path:
    folder = Path(name).absolute()
    folder.mkdir()
    for each in ("train", "held_out"):
        text = "".join(json.dumps(row) + "\n" for row in some if each == split)
        (folder / f"{each}.jsonl").write_text(text)
    write_manifest(folder, "rows", {})
    return folder


def checked(some: list[dict[str, Any]], *rewards: Any, **options: Any) -> Path:
    """Run the job of a list of rewards on rows of the set `sums`."""
    split = options.setdefault("split", "train")
    one = {"path": "post_training.0.grpo.rewards", "data": "sums", "rewards": [*rewards], **options}
    spec = RewardCheckSpec.model_validate({"lists": [one]}).pinned()
    job = write_job(Path("job").absolute(), "rewards", "reward_check", spec.model_dump(mode="json"),
                    **{"rows.0": rows("rows", some, split)})  # fmt: skip
    work(open_job(job))
    return job


def lines(job: Path) -> list[dict[str, Any]]:
    (one,) = json.loads((job / "output" / "check.json").read_text())
    return list(one["lines"])


def test_the_scores_of_own_and_other_answers_are_kept_and_shown() -> None:
    job = checked(CHAT, "sums.py:right", "similarity")
    assert [(line["reward"], line["own"], line["others"]) for line in lines(job)] == [
        ("right", 1.0, 0.0),
        ("similarity", 1.0, 0.0),
    ]
    made = RewardCheck.from_directory(job / "output")
    assert (made.rewards, made.faults) == (2, 0)
    page = stage_page(job / "output")
    assert "post_training.0.grpo.rewards, on data.sums" in page and "similarity" in page
    assert not (job / "notices.jsonl").exists()


def test_a_reward_that_cannot_tell_answers_apart_ends_a_run_that_trains_with_it() -> None:
    with pytest.raises(StageError, match=r"(?s)post_training.0.grpo.rewards: rewards on .*wrong +0 +0 +10 +not higher"):
        checked(SUMS, "sums.py:wrong")


def test_in_an_evaluation_it_is_a_notice() -> None:
    job = checked(SUMS, "sums.py:wrong", "match", split="held_out", required=False)
    (notice,) = [json.loads(line)["text"] for line in (job / "notices.jsonl").read_text().splitlines()]
    assert "wrong" in notice and "not higher" in notice
    assert RewardCheck.from_directory(job / "output").faults == 1


def test_rows_without_answers_have_nothing_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    job = checked([{"prompt": f"Say {n}."} for n in range(10)], {"length": {"at_most": 100}})
    assert lines(job) == []
    assert "nothing to try: the rows of data.sums have no answers" in capsys.readouterr().err
    assert "nothing to try; 0 of the first rows have an answer" in stage_page(job / "output")
    assert not (job / "notices.jsonl").exists()


def test_a_reward_that_fails_ends_the_run() -> None:
    with pytest.raises(StageError, match=r"post_training.0.grpo.rewards: .*fails raised ZeroDivisionError"):
        checked(SUMS, "sums.py:fails")


@pytest.mark.parametrize(
    "reward", ["sums.py:fails", "sums.py:fails_once", {"function": "sums.py:fails", "gold": False}]
)
def test_a_reward_that_raises_ends_the_run_in_a_pod_too(reward: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the row, the reward and the exception, whether or not the reward compares with the answers."""
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f1")
    told = r"grpo.rewards: .*fails\w* raised ZeroDivisionError: .*sums.py, line .* for row \d+ of 10 \(prompt"
    with pytest.raises(StageError, match=told):
        checked(SUMS, reward)


@pytest.mark.parametrize("reward", ["lacking.py:score", "sums.py:imports_late"])
def test_in_a_pod_which_may_lack_its_packages_it_is_a_notice(reward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("lacking.py").write_text("import nowhere_installed\n\ndef score(completions, answer):\n    return []\n")
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f1")
    job = checked(SUMS, reward)
    assert lines(job) == []
    assert "could not be tried before the stage" in (job / "notices.jsonl").read_text()


def test_without_answers_what_a_reward_raises_for_some_made_up_ones_is_a_notice() -> None:
    job = checked([{"prompt": f"Say {n}."} for n in range(10)], "sums.py:number")
    (notice,) = [json.loads(line)["text"] for line in (job / "notices.jsonl").read_text().splitlines()]
    assert "for a made-up one reward number raised ValueError" in notice


def test_without_answers_a_reward_that_raises_for_every_made_up_one_ends_the_run() -> None:
    with pytest.raises(StageError, match=r"grpo.rewards: .*fails_anyway raised ZeroDivisionError"):
        checked([{"prompt": f"Say {n}."} for n in range(10)], "sums.py:fails_anyway")


def test_its_pod_is_small_unless_a_reward_needs_much() -> None:
    def memory(**reward: Any) -> Any:
        one = {"path": "grpo.rewards", "data": "sums", "rewards": [{"function": "sums.py:right", **reward}]}
        spec = RewardCheckSpec.model_validate({"lists": [one]}).with_memory()
        return spec.pod and spec.pod.resources.memory

    assert SMALL.resources.memory == "2Gi"
    assert memory() is None
    assert memory(memory_gb=16) == "17Gi"


def test_a_reward_that_needs_tokens_is_left_to_its_stage() -> None:
    assert [line["reward"] for line in lines(checked(SUMS, "sums.py:tokens", "match"))] == ["match"]

"""Reward functions in existing conventions: those of TRL's documentation, Axolotl's examples and verl's scores.

Each was written for this test, as a separate file that runs unchanged.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.job import StageError
from baton.tasks.rewards.scorer import Scorer, Scores
from baton.tasks.rewards.spec import RewardSpec

Scored = Callable[..., Scores]


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scored:
    """Score with the functions of a file rewards.py."""
    monkeypatch.chdir(tmp_path)

    def score(text: str, *names: str, **batch: Any) -> Scores:
        Path("rewards.py").write_text(text)
        specs = [
            RewardSpec.model_validate(name if ":" in name or "." in name else f"rewards.py:{name}") for name in names
        ]
        with Scorer(specs) as scorer:
            return scorer.score(**{"prompts": ["p"] * len(batch["completions"]), **batch})

    return score


def turns(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


# TRL's documentation

TRL = """\
import asyncio
import re


def longer(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def longer_text(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def tagged(completions, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    matches = [re.match(r"^<think>.*?</think><answer>.*?</answer>$", content) for content in contents]
    return [1.0 if match else 0.0 for match in matches]


def boxed(completions, ground_truth, **kwargs):
    found = [re.search(r"\\\\boxed\\{(.*?)\\}", completion) for completion in completions]
    contents = [match.group(1) if match else "" for match in found]
    return [1.0 if c == gt else 0.0 for c, gt in zip(contents, ground_truth)]


def maths_only(prompts, completions, task, **kwargs):
    return [(1.0 if "4" in c else -1.0) if t == "math" else None for c, t in zip(completions, task)]


def coding_only(prompts, completions, task, **kwargs):
    return [float("def" in c) if t == "coding" else None for c, t in zip(completions, task)]


async def slow_judge(prompts, completions, **kwargs):
    async def one(completion):
        await asyncio.sleep(0.01)
        return float(len(completion))
    return await asyncio.gather(*[one(completion) for completion in completions])


def logged(completions, ground_truth, log_extra=None, log_metric=None, **kwargs):
    rewards = [1.0 if c == gt else 0.0 for c, gt in zip(completions, ground_truth)]
    if log_extra:
        log_extra("golden_answer", list(ground_truth))
    if log_metric:
        log_metric("accuracy", sum(rewards) / len(rewards))
    return rewards


def growing(completions, trainer_state, **kwargs):
    return [trainer_state.global_step / trainer_state.max_steps for _ in completions]
"""


def test_trl_tokens_are_asked_for_where_there_are_none(scored: Scored) -> None:
    with pytest.raises(StageError, match=r"longer: .*needs rows with a column completion_ids"):
        scored(TRL, "longer", completions=["a"])


def test_trl_by_tokens_and_by_characters(scored: Scored) -> None:
    scores = scored(TRL, "longer", "longer_text", completions=["a b", "c"], completion_ids=[[5, 6, 7], [8]])

    assert scores.rewards == {"longer": [3.0, 1.0], "longer_text": [3.0, 1.0]}


def test_trl_a_format_on_conversations(scored: Scored) -> None:
    completions = turns("<think>a</think><answer>b</answer>", "<think>a</think> b")

    assert scored(TRL, "tagged", completions=completions).total == [1.0, 0.0]


def test_trl_against_a_column(scored: Scored) -> None:
    completions = [r"so it is \boxed{2}", r"\boxed{3}", "4"]

    assert scored(TRL, "boxed", completions=completions, columns={"ground_truth": ["2", "2", "4"]}).total == [
        1.0,
        0.0,
        0.0,
    ]


def test_trl_several_tasks_in_one_set(scored: Scored) -> None:
    scores = scored(TRL, "maths_only", "coding_only", completions=["4", "def f"], columns={"task": ["math", "coding"]})

    assert scores.rewards == {"maths_only": [1.0, None], "coding_only": [None, 1.0]}
    assert scores.total == [1.0, 1.0]


def test_trl_an_asynchronous_function(scored: Scored) -> None:
    assert scored(TRL, "slow_judge", completions=["a", "bb"]).total == [1.0, 2.0]


def test_trl_what_a_function_logs(scored: Scored) -> None:
    scores = scored(TRL, "logged", completions=["a", "b"], columns={"ground_truth": ["a", "x"]})

    assert scores.metrics == {"accuracy": 0.5}
    assert scores.extra == {"golden_answer": ["a", "x"]}


def test_trl_the_trainer_s_state(scored: Scored) -> None:
    assert scored(TRL, "growing", completions=["a"], state={"global_step": 5, "max_steps": 20}).total == [0.25]


def test_trl_its_own_rewards_by_the_package_s_name(scored: Scored) -> None:
    completions = turns(r"It is \boxed{\frac{2}{4}}", r"\boxed{3}")

    scores = scored(
        "", "trl.rewards:accuracy_reward", completions=completions, columns={"solution": [r"\frac{1}{2}"] * 2}
    )

    assert scores.total == [1.0, 0.0]
    assert scores.extra["gold_parsed"]


# Axolotl's examples

AXOLOTL = """\
import random
import re


def rand_reward_func(prompts, completions) -> list[float]:
    return [random.uniform(0, 1) for _ in completions]


def extract_xml_answer(text: str) -> str:
    return text.split("<answer>")[-1].split("</answer>")[0].strip()


def correctness_reward_func(prompts, completions, answer, **kwargs) -> list[float]:
    responses = [completion[0]["content"] for completion in completions]
    question = prompts[0][-1]["content"]
    extracted = [extract_xml_answer(r) for r in responses]
    print("-" * 20, f"Question: {question}", f"Answer: {answer[0]}", f"Extracted: {extracted[0]}")
    return [2.0 if r == a else 0.0 for r, a in zip(extracted, answer)]


def int_reward_func(completions, **kwargs) -> list[float]:
    responses = [completion[0]["content"] for completion in completions]
    return [0.5 if extract_xml_answer(r).isdigit() else 0.0 for r in responses]


def count_xml(text) -> float:
    count = 0.0
    if text.count("<reasoning>") == 1:
        count += 0.125
    if text.count("</reasoning>") == 1:
        count += 0.125
    return count


def xmlcount_reward_func(completions, **kwargs) -> list[float]:
    return [count_xml(c[0]["content"]) for c in completions]


def oai_gsm8k_transform(cfg, *args, **kwargs):
    def transform_fn(example, tokenizer=None):
        return {"prompt": [{"role": "user", "content": example["question"]}], "answer": example["answer"]}

    return transform_fn, {"remove_columns": ["question"]}
"""


def test_axolotl_gsm8k(scored: Scored) -> None:
    prompts = [[{"role": "user", "content": "2 + 2?"}]] * 2
    completions = turns("<reasoning>easy</reasoning><answer> 4 </answer>", "<answer>four</answer>")
    names = ("correctness_reward_func", "int_reward_func", "xmlcount_reward_func")

    scores = scored(AXOLOTL, *names, prompts=prompts, completions=completions, columns={"answer": ["4", "4"]})

    assert scores.rewards == dict(zip(names, [[2.0, 0.0], [0.5, 0.0], [0.25, 0.0]], strict=True))
    assert scores.total == [2.75, 0.0]


def test_axolotl_a_function_that_takes_no_columns(scored: Scored) -> None:
    (reward,) = scored(AXOLOTL, "rand_reward_func", completions=["x"], columns={"answer": ["4"]}).total

    assert reward is not None and 0 <= reward <= 1


# verl's compute_score files

VERL = """\
import re


def extract_solution(solution_str, method="strict"):
    if method == "strict":
        solution = re.search(r"#### (\\\\-?[0-9\\\\.\\\\,]+)", solution_str)
        return None if solution is None else solution.group(0).split("#### ")[1].replace(",", "")
    answers = re.findall(r"(\\\\-?[0-9\\\\.\\\\,]+)", solution_str)
    return answers[-1] if answers else None


def gsm8k(solution_str, ground_truth, method="strict", format_score=0.0, score=1.0):
    answer = extract_solution(solution_str=solution_str, method=method)
    if answer is None:
        return 0
    return score if answer == ground_truth else format_score


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source == "openai/gsm8k":
        return gsm8k(solution_str, ground_truth)
    if data_source == "with_parts":
        right = solution_str == ground_truth
        return {"score": 1.0 if right else -1.0, "acc": right, "pred": solution_str}
    if data_source == "by_index":
        return extra_info["index"]
    raise NotImplementedError(f"Reward function is not implemented for {data_source=}")


async def compute_score_async(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(solution_str == ground_truth)
""".replace("\\\\", "\\")


def test_verl_by_the_data_s_source(scored: Scored) -> None:
    columns = {
        "data_source": ["openai/gsm8k", "openai/gsm8k", "with_parts", "by_index"],
        "ground_truth": ["1000", "72", "x", ""],
        "extra_info": [{}, {}, {}, {"index": 7}],
        "ability": ["math"] * 4,
    }

    scores = scored(VERL, "compute_score", completions=["so #### 1,000", "72", "x", ""], columns=columns)

    assert scores.total == [1.0, 0.0, 1.0, 7.0]
    assert scores.metrics == {"acc": 1.0}


def test_verl_a_score_of_one_data_set(scored: Scored) -> None:
    assert scored(VERL, "gsm8k", completions=turns("#### 4", "4"), columns={"ground_truth": ["4", "4"]}).total == [
        1.0,
        0.0,
    ]


def test_verl_an_asynchronous_score(scored: Scored) -> None:
    assert scored(VERL, "compute_score_async", completions=["a", "b"], columns={"ground_truth": ["a", "x"]}).total == [
        1,
        0,
    ]


def test_verl_an_error_names_the_row(scored: Scored) -> None:
    columns = {"data_source": ["openai/gsm8k", "nowhere"], "ground_truth": ["4", "4"]}

    with pytest.raises(StageError, match=r"NotImplementedError: .*rewards.py, line \d+.*for row 2 of 2"):
        scored(VERL, "compute_score", completions=["#### 4", "4"], columns=columns)


def test_verl_wants_a_ground_truth(scored: Scored) -> None:
    with pytest.raises(StageError, match=r"compute_score: .*needs rows with a column ground_truth"):
        scored(VERL, "compute_score", completions=["4"], columns={"data_source": ["openai/gsm8k"]})

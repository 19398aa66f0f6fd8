"""Spec of an evaluation, which is the same for all compared models."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, Field

from baton.infra.storage.address import File, digest_of, send_packed
from baton.tasks.core.spec import PathText, Problem, Spec, StageSpec, identity_if_set, not_identity
from baton.tasks.environments.spec import ToolUse
from baton.tasks.evaluate.results import SETS
from baton.tasks.evaluate.task_files import gathered, is_file_name
from baton.tasks.rewards.spec import MOST, RewardSpec, rewards_problems
from baton.tasks.vllm.memory import vllm_share

ROWS_FIELDS = ("prompts", "train_prompts", "samples", "temperature", "top_p", "max_new_tokens", "pass_at")
LM_EVAL_FIELDS = ("chat_template", "few_shot", "limit")
TURNS = ("turns", "tool_calls", "tool_errors", "environments_lost")  # metrics of conversations


class BitsSpec(Spec):
    """Bits per byte on the corpora's held-out documents."""

    held_out_bytes: int = Field(400_000, ge=4, description="Maximum held-out text per corpus; bytes")  # one character

    def smoke(self) -> dict[str, Any]:
        return {"held_out_bytes": min(self.held_out_bytes, 20_000)}


SCORING = 2  # version of the scoring of lm-eval's tasks; since 2 without the model's thoughts


class EvaluatorSpec(ToolUse):
    """An evaluator, with rows and rewards, rows and an environment, or tasks of lm-eval."""

    data: str | None = Field(None, description="Set of rows (under the recipe's `data`) whose held-out rows are used")
    rewards: list[RewardSpec] = Field(
        [], max_length=MOST, description="Each is a metric, whose value is the mean over the completions"
    )
    prompts: int = Field(600, ge=1, le=100_000, description="Maximum number of held-out rows; count")
    train_prompts: int = identity_if_set(
        0,
        "Number of training rows of the same set that are asked and scored as the held-out rows are, to see an "
        "overfit; 0: none. A promotion and `publish.best` never use them; count",
        ge=0,
        le=100_000,
    )
    samples: int = Field(1, ge=1, le=1000, description="Completions per prompt; count")
    pass_at: list[int] = Field([], description="k of pass@k, each at most `samples`; a reward of 1 passes")
    temperature: float = Field(1.0, ge=0, le=2, description="Sampling temperature; 0: greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling: probability mass sampled from")
    max_new_tokens: int = Field(
        64, ge=1, le=131_072, description="Maximum length of a completion, including tools' answers; tokens"
    )
    lm_eval: list[PathText] = Field(
        [], description="lm-eval tasks, instead of `data`: names, or YAML files in folders with all that they read"
    )
    task_files: dict[str, str] | None = Field(
        None, repr=False, description="Text of the files in the YAML files' folders; filled in by Baton"
    )
    task_data: dict[str, str] = Field(
        {}, repr=False, description="BLAKE3 of the other files in these folders; filled in by Baton"
    )
    task_place: PathText | None = not_identity(None, "Folder or archive with these files; filled in by Baton")
    lm_eval_version: str | None = Field(
        None, description="Versions of lm-eval and of the scoring of its tasks; filled in by Baton"
    )
    chat_template: bool = Field(
        False, description="lm-eval's apply_chat_template: send each task's prompt as a user turn"
    )
    think_end: str | None = identity_if_set(
        None,
        "text that ends a model's thought, which no reward or task then scores; null: the usual ends (</think>, "
        '[/THINK], …), for lm-eval\'s tasks and the rewards that read an answer; "": no thoughts, only with lm_eval',
        max_length=200,
    )
    few_shot: int | None = Field(None, ge=0, le=100, description="lm-eval's num_fewshot; null: each task's default")
    limit: int | None = Field(None, ge=1, description="Maximum number of documents per lm-eval task; null: all")

    def smoke(self) -> dict[str, Any]:
        return {"limit": min(self.limit or 4, 4)} if self.lm_eval else {"prompts": min(self.prompts, 8)}

    def problems(self) -> list[Problem]:
        if (self.data is None) == (not self.lm_eval):
            return [
                Problem("", self.data, "needs either `data: <set of rows>` with `rewards`, or `lm_eval: [<tasks>]`")
            ]
        problems = [problem.under("rewards") for problem in rewards_problems(self.rewards)] + self.tool_problems()
        if self.data is not None and not (self.rewards or self.environment):
            problems.append(Problem("rewards", [], "at least one reward, whose mean is the metric"))
        labels = [reward.label for reward in self.rewards if reward.is_one()]
        for label in labels:
            if label in self._own_measures() or (self.environment and label == self.environment.attribute):
                problems.append(
                    Problem("rewards", label, "another `name`: this is the name of a metric of every such evaluator")
                )
        if self.lm_eval:
            problems += self.unused(ROWS_FIELDS, "unset with lm_eval, whose tasks have their own")
        else:
            problems += self.unused(LM_EVAL_FIELDS, "unset with data; it is a field of lm_eval's tasks")
        if self.lm_eval and self.uses_tools():
            problems.append(Problem("tools", "lm_eval", "no environment or tools: lm-eval's tasks sample single texts"))
        if self.lm_eval and self.rewards:
            problems.append(
                Problem("rewards", len(self.rewards), "none with lm_eval, whose tasks define their metrics")
            )
        problems += [
            Problem("lm_eval", task, "an existing file, or the name of an lm-eval task")
            for task in self.lm_eval
            if self.task_files is None and is_file_name(task) and not Path(task).expanduser().is_file()
        ]
        problems += self._think_problems()
        problems += [
            Problem("pass_at", k, f"1 to samples ({self.samples})") for k in self.pass_at if not 1 <= k <= self.samples
        ]
        return problems

    def pinned(self) -> Self:
        """Return a copy with the current source of its rewards and of its tasks' files. Raises UserError."""
        if self.task_files is not None or not self.lm_eval:
            return super().pinned()
        gathered_files = gathered(self.lm_eval)
        files = {"task_files": gathered_files.texts, "task_data": gathered_files.digests}
        place = {"task_place": str(gathered_files.root)} if gathered_files.digests else {}
        named = {"lm_eval": gathered_files.tasks, "lm_eval_version": _lm_eval_version()}
        return self.model_copy(update=named | files | place)

    def local_files(self) -> list[File]:
        """Return the files of this machine that the tasks read and that are not in the spec."""
        if self.task_place is None or digest_of(self.task_place):
            return []
        root = Path(self.task_place)
        return [File.local(root / name, root) for name in self.task_data]

    def measures(self) -> list[str]:
        """Return the names of the evaluator's metrics; none for lm-eval's tasks. The metric with the environment's name
        exists only if the environment has get_reward()."""
        if self.data is None:
            return []
        labels = [reward.label for reward in self.rewards if reward.is_one()]
        environment_reward = [self.environment.attribute] if self.environment else []
        return [*labels, *environment_reward, *self._own_measures(), *(f"pass@{k}" for k in self.pass_at)]

    def _think_problems(self) -> list[Problem]:
        if self.think_end == "" and self.data is not None:
            return [Problem("think_end", "", "a text, or null: rewards that read an answer leave thoughts out")]
        affected = [
            reward.label
            for reward in self.rewards
            if reward.format and any(self.think_end == f"</{tag}>" for tag in reward.format.tags)
        ]
        return [
            Problem("think_end", self.think_end, f"null: the reward {label} reads the section that this text ends")
            for label in affected
        ]

    def _own_measures(self) -> list[str]:
        return ["distinct", *(TURNS if self.uses_tools() else ())]


class EvaluateSpec(StageSpec):
    """Evaluators by name: `bits_per_byte` and any number of others."""

    uses_gpus: ClassVar[bool] = True
    estimate: ClassVar[str] = "baton.tasks.evaluate.need:need"

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, EvaluatorSpec] = Field(init=False)

    bits_per_byte: BitsSpec | None = Field(None, description="Bits per byte of the corpora's held-out text; null: skip")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the choice of rows and of sampling")
    max_model_len: int | None = Field(
        None,
        ge=8,
        description="Limit of prompt plus completion, and of a window of text, in tokens; longer ones are left out or "
        "truncated, and counted. null: the model's positions; vLLM is opened for the longest sequence, not for them",
    )
    gpu_memory_share: float = vllm_share(0.85, "for weights and KV cache")

    def evaluators(self) -> dict[str, EvaluatorSpec]:
        """Return all evaluators except `bits_per_byte`, in the recipe's order."""
        return dict(self.__pydantic_extra__)

    def sets(self) -> list[str]:
        """Return the sorted names, under the recipe's `data`, of the used sets of rows. The stage's input `rows` has
        this order."""
        return sorted({evaluator.data for evaluator in self.evaluators().values() if evaluator.data is not None})

    def uses_vllm(self) -> bool:
        return True

    def identity(self) -> dict[str, Any]:
        """Return the spec's identity with that of each evaluator."""
        return super().identity() | {name: evaluator.identity() for name, evaluator in self.evaluators().items()}

    def sent(self, storage: str) -> Self:
        changed = {
            name: one.model_copy(update={"task_place": send_packed(files, storage)})
            for name, one in self.evaluators().items()
            if (files := one.local_files())
        }
        return self.model_copy(update=changed)

    def problems(self) -> list[Problem]:
        problems: list[Problem] = []
        names = [name.lower() for name in self.evaluators()]
        for name, one in self.evaluators().items():
            problems += [problem.under(name) for problem in one.problems()]
            if name in SETS or not re.fullmatch(r"[A-Za-z0-9][\w-]*", name, re.ASCII):
                allowed = f"a name of letters, digits, _ and -, other than {', '.join(SETS)}"
                problems.append(Problem(name, name, allowed))
            if names.count(name.lower()) > 1:
                allowed = "a name that differs from the others' in more than upper and lower case"
                problems.append(Problem(name, name, allowed))
            if one.data and self.max_model_len and one.max_new_tokens >= self.max_model_len:
                allowed = f"less than max_model_len ({self.max_model_len})"
                problems.append(Problem(f"{name}.max_new_tokens", one.max_new_tokens, allowed))
        if not self.bits_per_byte and not self.evaluators():
            problems.append(Problem("", "nothing", "at least one evaluator, or leave `evaluate` out"))
        return problems

    def metrics(self) -> list[str]:
        """Return the names of the metrics that are known before the evaluation runs: all but those of lm-eval's
        tasks."""
        names = ["bits_per_byte"] if self.bits_per_byte else []
        for name, evaluator in self.evaluators().items():
            names += [f"{name}.{measure}" for measure in evaluator.measures()]
        return names

    def sequence_lengths(self) -> dict[str, int]:
        lengths = {"max_model_len": self.max_model_len} if self.max_model_len else {}
        return lengths | {
            f"{name}.max_new_tokens": evaluator.max_new_tokens
            for name, evaluator in self.evaluators().items()
            if evaluator.data is not None
        }


def _lm_eval_version() -> str | None:
    """Return the versions of lm-eval and of the scoring, or None if lm-eval is not installed."""
    try:
        return f"{version('lm-eval')}/{SCORING}"
    except PackageNotFoundError:
        return None

"""Scores completions with several rewards, run apart from the one who asks.

    with Scorer([RewardSpec.model_validate("sums.py:right").as_found(), …]) as scorer:
        scores = scorer.score(prompts, completions, columns)
        scores.rewards["right"], scores.total       # a number or None for each completion
        scorer.save(checkpoint), scorer.load(checkpoint)

Functions run in processes of their own, one for each set of source files (so that two files may have one name), all
at the same time. They see text: prompts, completions and the rows' columns as JSON, no tensors, none of the trainer's
environment but what a person needs to run Python, and nothing of the trainer's memory. They are the user's own code:
this keeps a trainer's secrets and its speed from their mistakes, it is no sandbox against an attacker. Of what a
model writes nothing is executed. Where a function fails, StageError says which, for what row, and where in its file.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from infra.durable import write_json
from tasks.job import StageError
from tasks.rewards.call import Batch
from tasks.rewards.process import Process
from tasks.rewards.spec import RewardSpec, rewards_problems
from tasks.rewards.worker import SOURCES
from tasks.spec import Problem

MEMORY = "rewards.json"
LOAD_S = 600.0  # for an import, which may load a model


@dataclass(frozen=True)
class Scores:
    """Of a batch of completions, in their order; None: a reward does not apply to it."""

    rewards: dict[str, list[float | None]]  # by the rewards' names
    total: list[float | None]  # None where no reward applies
    metrics: dict[str, float]  # what functions gave to log_metric, means
    extra: dict[str, list[Any]]  # what functions gave to log_extra


class Scorer:
    """The processes of some rewards; to be used as a context, which ends them."""

    def __init__(self, rewards: Sequence[RewardSpec]) -> None:
        if problems := rewards_problems(rewards):
            raise StageError("rewards:\n" + "\n".join(map(str, problems)))
        self.rewards = [reward.as_found() for reward in rewards]
        self.columns: dict[str, dict[str, bool]] = {}  # by the rewards' names: the columns they name; are they needed?
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        self._home = TemporaryDirectory(prefix="baton-rewards-", ignore_cleanup_errors=True)
        try:
            self._start(Path(self._home.name))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self._home.cleanup()

    def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]] | None = None,
        *,
        completion_ids: Sequence[Sequence[int]] | None = None,
        state: Mapping[str, float] | None = None,
    ) -> Scores:
        """Prompts and completions are text, or lists of messages; of each, as of each column, one for each completion.
        `state` has what a trainer's state says (global_step, max_steps, epoch). Raises StageError."""
        named = {name: list(values) for name, values in (columns or {}).items() if name != "prompt"}
        if completion_ids is not None:
            named["completion_ids"] = [list(each) for each in completion_ids]
        lengths = {name: len(values) for name, values in (named | {"prompts": prompts}).items()}
        if wrong := {name: length for name, length in lengths.items() if length != len(completions)}:
            raise StageError(f"rewards: for {len(completions)} completions there are {wrong}: one for each is wanted")
        if lacking := self.needs(named):
            raise StageError("\n".join(f"reward {problem}" for problem in lacking))
        batch = asdict(Batch(list(prompts), list(completions), named, dict(state or {})))
        patience = {reward.label: reward.timeout_s for reward in self.rewards}
        try:
            request = json.dumps({"batch": batch, "patience_s": patience})
        except (TypeError, ValueError) as error:
            raise StageError(f"rewards: text, numbers, lists and objects can be handed on: {error}") from error
        answers = self._ask(request)
        given = {name: values for answer in answers for name, values in answer["rewards"].items()}
        rewards = {reward.label: given[reward.label] for reward in self.rewards}
        metrics = {name: value for answer in answers for name, value in answer["metrics"].items()}
        extra = {name: values for answer in answers for name, values in answer["extra"].items()}
        return Scores(rewards, total(self.rewards, rewards, len(completions)), metrics, extra)

    def needs(self, columns: Collection[str]) -> list[Problem]:
        """What the rewards lack in rows with these columns; `completion_ids` is one where they are handed on."""
        return [problem for each in self.rewards for problem in lacking(each, self.columns[each.label], columns)]

    def save(self, checkpoint: Path) -> None:
        """What rewards remember (those with state_dict and load_state_dict) into a checkpoint's folder."""
        states = [answer["states"] for answer in self._ask(json.dumps({"save": True}))]
        write_json(checkpoint / MEMORY, {name: state for each in states for name, state in each.items()})

    def load(self, checkpoint: Path) -> None:
        """So that a resumed run scores like one that was never interrupted."""
        self._ask(json.dumps({"load": json.loads((checkpoint / MEMORY).read_text())}))

    def _start(self, home: Path) -> None:
        groups: dict[str, list[RewardSpec]] = {}
        for reward in self.rewards:
            groups.setdefault(_group(reward), []).append(reward)
        for number, members in enumerate(groups.values()):
            environment = [name for reward in members for name in _environment(reward)]
            process = Process(home / str(number), own=members[0].builtin is not None, environment=environment)
            self._processes.append(process)
            for reward in members:
                if reward.function:
                    reward.function.write(process.folder / SOURCES)
        requests = [
            json.dumps({"functions": list(map(_asked, members)), "patience_s": LOAD_S}) for members in groups.values()
        ]
        for answer in self._ask(*requests):
            self.columns |= answer["columns"]

    def _ask(self, *requests: str) -> list[dict[str, Any]]:
        """The answers of all processes, to one request or to one each."""
        each = requests if len(requests) > 1 else list(requests) * len(self._processes)
        limit_s = max(LOAD_S, sum(reward.timeout_s for reward in self.rewards))
        if not self._processes:
            return []
        with ThreadPoolExecutor(len(self._processes)) as pool:
            asked = [
                pool.submit(process.ask, words, limit_s) for process, words in zip(self._processes, each, strict=True)
            ]
        if errors := [str(error) for one in asked if (error := one.exception())]:
            raise StageError("\n".join(errors))
        return [one.result() for one in asked]


def lacking(reward: RewardSpec, named: Mapping[str, bool], columns: Collection[str]) -> list[Problem]:
    """What a reward lacks in rows with these columns; `named` are those that its function names: are they needed?"""
    wanted = reward.builtin.wants() if reward.builtin else [(name,) for name, needed in named.items() if needed]
    missing = [" or ".join(each) for each in wanted if not {*each} & {*columns}]
    return [Problem(reward.label, sorted(columns), f"needs rows with a column {each}") for each in missing]


def total(specs: Sequence[RewardSpec], rewards: Mapping[str, Sequence[float | None]], count: int) -> list[float | None]:
    """The weighted sum as TRL makes it: a reward that does not apply adds nothing, and None is the sum of none.
    Diversity takes up to its weight of the sum away, whatever the sum's sign."""
    sums: list[float | None] = []
    for row in range(count):
        known = [(spec, value) for spec in specs if (value := rewards[spec.label][row]) is not None]
        summands = [spec.weight * value for spec, value in known if not spec.diversity]
        result = sum(summands) if summands else None
        for spec, value in known:
            if spec.diversity and result is not None:
                result -= spec.weight * (1 - value) * abs(result)
        sums.append(result)
    return sums


def _group(reward: RewardSpec) -> str:
    """Rewards of one group run in one process: those of the same files that see the same environment."""
    function = reward.function
    of = "builtin" if function is None else (function.source or f"{function.module} {function.version}")
    return json.dumps([of, sorted(_environment(reward))])


def _environment(reward: RewardSpec) -> list[str]:
    return [*reward.environment, *(reward.builtin.environment() if reward.builtin else ())]


def _asked(reward: RewardSpec) -> dict[str, Any]:
    """What the process needs to have the function."""
    function = reward.function
    if function is None:
        options = reward.builtin
        words = {"builtin": reward.kind, "class": type(options).__name__}
        return {"name": reward.label, **words, "options": options.model_dump(mode="json") if options else {}}
    where = {"module": function.module, "attribute": function.attribute, "in_folder": function.source is not None}
    return {"name": reward.label, **where}

"""Score completions with several rewards, run in subprocesses.

    with Scorer([RewardSpec.model_validate("sums.py:right").pinned(), …]) as scorer:
        scores = scorer.score(prompts, completions, columns)
        scores.rewards["right"], scores.total       # a number or None per completion
        scorer.save(checkpoint), scorer.load(checkpoint)

Functions run in parallel subprocesses, one per set of source files (so that files of the same name don't clash). They
get prompts, completions and the rows' columns as JSON, no tensors, and only the environment needed to run Python. They
are user code: the subprocesses protect the trainer's secrets and speed from mistakes, but are no sandbox against an
attacker. Only code_tests, python_output and program execute text of a model, in a sandbox. If a function fails, the
StageError names the function, the row and the line.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from baton.infra.storage.durable import write_json
from baton.tasks.core.job import StageError
from baton.tasks.core.spec import Problem
from baton.tasks.rewards.call import Batch
from baton.tasks.rewards.spec import RewardSpec, rewards_problems
from baton.tasks.rewards.user_process import NotInstalled, UserProcess
from baton.tasks.rows.stored import Row, partial_columns, reserved_columns, without_marks
from baton.tasks.user_code.load_function import SOURCES

MEMORY = "rewards.json"
LOAD_S = 600.0  # time limit of an import, which may load a model
LARGEST = 1e15  # training sums the squares of up to 1e8 rewards of a step in float32, whose maximum is 3.4e38


@dataclass(frozen=True)
class Scores:
    """Scores of a batch of completions, in order; None where a reward does not apply."""

    rewards: dict[str, list[float | None]]  # reward's name -> scores
    total: list[float | None]  # None where no reward applies
    metrics: dict[str, float]  # means of the functions' log_metric calls
    extra: dict[str, list[Any]]  # the functions' log_extra calls


class Scorer:
    """A context manager for the processes of rewards."""

    def __init__(self, rewards: Sequence[RewardSpec]) -> None:
        if problems := rewards_problems(rewards):
            raise StageError("rewards:\n" + "\n".join(map(str, problems)))
        self.rewards = [reward.pinned() for reward in rewards]
        self.columns: dict[str, dict[str, bool]] = {}  # reward -> column parameter -> whether it is required
        self._processes: list[UserProcess] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            home = stack.enter_context(TemporaryDirectory(prefix="baton-rewards-", ignore_cleanup_errors=True))
            self._start(Path(home), stack)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]] | None = None,
        *,
        completion_ids: Sequence[Sequence[int]] | None = None,
        state: Mapping[str, float] | None = None,
        only: Collection[str] | None = None,
        begun: Sequence[str] = (),
    ) -> Scores:
        """Score completions. Prompts and completions are text or lists of messages; prompts and columns have one value
        per completion. `state` is the trainer's (global_step, max_steps, epoch). `only`: the labels of the rewards to
        use.
        `begun`: for each prompt that ends within a thought, the beginning of that thought (tasks/rewards/thinking.py).
        Raises StageError."""
        asked = [reward for reward in self.rewards if only is None or reward.label in only]
        named = {name: list(values) for name, values in (columns or {}).items() if name != "prompt"}
        if completion_ids is not None:
            named["completion_ids"] = [list(ids) for ids in completion_ids]
        lengths = {name: len(values) for name, values in (named | {"prompts": prompts}).items()}
        if wrong := {name: length for name, length in lengths.items() if length != len(completions)}:
            raise StageError(f"rewards: {len(completions)} completions, but {wrong}: expected one per completion")
        if problems := [problem for reward in asked for problem in self._missing_columns(reward, named)]:
            raise StageError("\n".join(f"reward {problem}" for problem in problems))
        shown = [without_marks(prompt) if isinstance(prompt, list) else prompt for prompt in prompts]
        batch = asdict(Batch(shown, list(completions), named, dict(state or {}), list(begun)))
        timeouts = {
            reward.label: reward.timeout_s + (reward.builtin.extra_s(len(completions), named) if reward.builtin else 0)
            for reward in asked
        }
        try:
            request = json.dumps({"batch": batch, "timeout_s": timeouts})
        except (TypeError, ValueError) as error:
            raise StageError(f"rewards: columns may contain text, numbers, lists and objects: {error}") from error
        answers = self._ask(request, limit_s=max(timeouts.values(), default=0.0))
        by_name = {name: values for answer in answers for name, values in answer["rewards"].items()}
        rewards = {reward.label: by_name[reward.label] for reward in asked}
        metrics, extra = (_logged(answers, kind) for kind in ("metrics", "extra"))
        return Scores(rewards, total(asked, rewards, len(completions)), metrics, extra)

    def needs(self, columns: Collection[str]) -> list[Problem]:
        """Return problems with columns that the rewards need and rows with these columns lack; `completion_ids` counts
        as a column."""
        return [problem for reward in self.rewards for problem in self._missing_columns(reward, columns)]

    def _missing_columns(self, reward: RewardSpec, columns: Collection[str]) -> list[Problem]:
        return missing_columns(reward, self.columns[reward.label], columns)

    def refuse_partial(self, rows: Sequence[Row]) -> None:
        """Raise StageError if a reward requires a column that only some of the rows have."""
        some = {name for row in rows for name in row}
        without = {problem.allowed for problem in self.needs(some)}  # columns that come with the completions
        for problem in self.needs(some - partial_columns(rows)):
            if problem.allowed not in without:
                raise StageError(
                    f"reward {problem.path} {problem.allowed}, which some of the {len(rows)} rows lack; write null "
                    "where it does not apply"
                )

    def save(self, checkpoint: Path) -> None:
        """Save the state of rewards that have state_dict and load_state_dict to a checkpoint's folder."""
        answers = self._ask(json.dumps({"save": True}), limit_s=self._longest_s)
        states = {name: state for answer in answers for name, state in answer["states"].items()}
        write_json(checkpoint / MEMORY, states)

    def load(self, checkpoint: Path) -> None:
        """Restore the rewards' state, so that a resumed run scores like an uninterrupted one."""
        self._ask(json.dumps({"load": json.loads((checkpoint / MEMORY).read_text())}), limit_s=self._longest_s)

    @property
    def _longest_s(self) -> float:
        return max((reward.timeout_s for reward in self.rewards), default=0.0)

    def _start(self, home: Path, stack: ExitStack) -> None:
        groups: dict[str, list[RewardSpec]] = {}
        for reward in self.rewards:
            groups.setdefault(_group(reward), []).append(reward)
        for number, members in enumerate(groups.values()):
            environment = [name for reward in members for name in _environment(reward)]
            owner = "user" if members[0].function else "builtin"
            # Rewards that run programs limit them, and the programs' memory is not that of the worker
            memory_gb = 0 if _runs_code(members[0]) else max(reward.memory_gb for reward in members)
            process = UserProcess(home / str(number), environment, "baton.tasks.rewards.worker", owner, str(memory_gb))
            stack.callback(process.close)
            self._processes.append(process)
            for reward in members:
                if reward.function:
                    reward.function.write(process.folder / SOURCES)
        requests = [
            json.dumps({"functions": list(map(_request, members)), "timeout_s": LOAD_S}) for members in groups.values()
        ]
        for answer in self._ask(*requests):
            self.columns |= answer["columns"]

    def _ask(self, *requests: str, limit_s: float = LOAD_S) -> list[dict[str, Any]]:
        """Return the answers of all processes to one request, or to one request each."""
        one_each = requests if len(requests) > 1 else list(requests) * len(self._processes)
        if not self._processes:
            return []
        with ThreadPoolExecutor(len(self._processes)) as pool:
            pairs = zip(self._processes, one_each, strict=True)
            futures = [pool.submit(process.ask, request, limit_s) for process, request in pairs]
        if errors := [error for future in futures if (error := future.exception())]:
            kind = NotInstalled if all(isinstance(error, NotInstalled) for error in errors) else StageError
            raise kind("\n".join(map(str, errors)))
        return [future.result() for future in futures]


def _logged(answers: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the processes' logged metrics or columns by name. Raises StageError if two processes use the same name."""
    logged: dict[str, Any] = {}
    for answer in answers:
        if twice := sorted(logged.keys() & answer[kind].keys()):
            raise StageError(
                f"rewards: {', '.join(answer['rewards'])} and a reward of another file log {kind} of the same name, "
                f"{twice[0]}: log them under different names"
            )
        logged |= answer[kind]
    return logged


def refuse_reserved(rows: Sequence[Row]) -> None:
    """Raise StageError if a column of a set has the name of an argument that rewards get anyway."""
    for name, allowed in reserved_columns(rows).items():
        raise StageError(f"column {name} of the rows: {allowed}")


def missing_columns(reward: RewardSpec, parameters: Mapping[str, bool], columns: Collection[str]) -> list[Problem]:
    """Return problems with columns that a reward needs and rows with these columns lack. `parameters`: the function's
    column parameters, and whether each is required."""
    needed = (
        reward.builtin.wants() if reward.builtin else [(name,) for name, required in parameters.items() if required]
    )
    missing = [" or ".join(names) for names in needed if not {*names} & {*columns}]
    return [Problem(reward.label, sorted(columns), f"needs rows with a column {name}") for name in missing]


def total(specs: Sequence[RewardSpec], rewards: Mapping[str, Sequence[float | None]], count: int) -> list[float | None]:
    """Return the weighted sums, as in TRL: a reward that does not apply adds nothing, and the sum is None if no reward
    applies. Diversity subtracts up to `weight` of the sum's magnitude. Raises StageError for a sum that is too
    large."""
    sums: list[float | None] = []
    for row in range(count):
        known = [(spec, value) for spec in specs if (value := rewards[spec.label][row]) is not None]
        summands = [spec.weight * value for spec, value in known if not spec.diversity]
        result = sum(summands) if summands else None
        for spec, value in known:
            if spec.diversity and result is not None:
                result -= spec.weight * (1 - value) * abs(result)
        sums.append(result)
    return within_range(sums)


def within_range(sums: list[float | None]) -> list[float | None]:
    """Return the sums of a batch's rewards unchanged. Raises StageError if a sum is too large to train on, or NaN."""
    for row, value in enumerate(sums):
        if value is not None and not abs(value) <= LARGEST:
            raise StageError(
                f"rewards: the weighted sum for completion {row + 1} is {value}: lower values or weights, to a sum "
                f"from {-LARGEST:g} to {LARGEST:g}"
            )
    return sums


def _group(reward: RewardSpec) -> str:
    """Return the key of the rewards that share a process: functions of the same files with the same environment,
    built-in rewards that run programs, or other built-in rewards."""
    function = reward.function
    source = "builtin" if function is None else (function.source or f"{function.module} {function.version}")
    return json.dumps([source, sorted(_environment(reward)), _runs_code(reward)])


def _runs_code(reward: RewardSpec) -> bool:
    return reward.builtin is not None and reward.builtin.runs_code


def _environment(reward: RewardSpec) -> list[str]:
    return [*reward.environment, *(reward.builtin.environment() if reward.builtin else ())]


def _request(reward: RewardSpec) -> dict[str, Any]:
    """Return the worker's request for a function or a built-in reward."""
    function = reward.function
    if function is None:
        options = reward.builtin
        builtin = {"builtin": reward.kind, "class": type(options).__name__}
        return {"name": reward.label, **builtin, "options": options.model_dump(mode="json") if options else {}}
    return {"name": reward.label, **function.request()}

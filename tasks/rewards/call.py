"""Call reward functions and validate their results. Standard library only, since this runs beside users' code.

TRL's signature    f(prompts, completions, completion_ids, **columns, trainer_state, log_metric, log_extra)
verl's signature   compute_score(data_source, solution_str, ground_truth, extra_info) per completion, returning a number
                   or a dict with "score"; detected by the parameter `solution_str`

A function gets the arguments that it has parameters for, or all of them if it accepts `**kwargs`; it may be async. It
gets copies, so that no other function sees its changes.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from baton.infra.text import shown
from baton.tasks.rewards.thinking import with_beginning
from baton.tasks.user_code.load_function import LONGEST_LINE, Unusable, described

ENVIRONMENTS = "environments"  # column with the final states of the conversations' environments, as objects like TRL's
_GIVEN = {"prompts", "completions", "trainer_state", "log_metric", "log_extra"}  # available for any rows
_VERL = {"data_source", "ground_truth", "extra_info"}
_NO_VERL: dict[str, Any] = {"data_source": "", "extra_info": {}}  # defaults for rows without these columns
_START = {"global_step": 0, "max_steps": 0, "epoch": 0.0}  # default trainer state


class Attributes(SimpleNamespace):
    """The final state of a conversation's environment: its public attributes that JSON can represent."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the environment has no {name!r}, but {', '.join(vars(self)) or 'no attributes'}: a reward sees an "
            "environment's public attributes that are JSON values (lists, no tuples; mappings by text)"
        )


@dataclass(frozen=True)
class Batch:
    """Completions to score, each with its prompt and one value of each column (such as `completion_ids`)."""

    prompts: list[Any]
    completions: list[Any]
    columns: dict[str, list[Any]] = field(default_factory=dict)
    state: dict[str, float] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)  # the beginning of a thought at the prompt's end, or ""

    def row(self, index: int) -> "Batch":
        columns = {name: [values[index]] for name, values in self.columns.items()}
        return Batch(
            [self.prompts[index]], [self.completions[index]], columns, self.state, self.begun[index : index + 1]
        )

    def place(self, index: int) -> str:
        """Describe row `index`."""
        prompt, completion = f"{self.prompts[index]!r:.80}", f"{self.completions[index]!r:.80}"
        return f"row {index + 1} of {len(self.prompts)} (prompt {prompt}, completion {completion})"


@dataclass
class Log:
    """Metrics and columns that rewards log beside their values."""

    metrics: dict[str, list[float]] = field(default_factory=dict)
    extra: dict[str, list[Any]] = field(default_factory=dict)

    def metric(self, name: str, value: Any) -> None:
        if not math.isfinite(value):
            raise ValueError(f"log_metric({name!r}, {value}): expected a finite number")
        self.metrics.setdefault(shown(str(name), LONGEST_LINE), []).append(float(value))

    def column(self, name: str, values: Any) -> None:
        self.extra[str(name)] = [one if isinstance(one, str | int | float | None) else str(one) for one in values]


class Reward:
    """A reward function, called with the arguments it expects."""

    def __init__(self, name: str, function: Callable[..., Any], folder: Path) -> None:
        self.name, self.function, self.folder = name, function, folder
        try:
            self.parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # written in C
            self.parameters = inspect.signature(lambda **columns: None).parameters
        if not self._accepts_any and not {"completions", "solution_str"} & self.parameters.keys():
            raise Unusable(
                f"{name} takes ({', '.join(self.parameters)}): a reward must take completions, and optionally prompts, "
                "completion_ids, the rows' columns or **kwargs; or verl's solution_str and ground_truth"
            )

    @cached_property
    def _accepts_any(self) -> bool:
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters.values())

    @property
    def columns(self) -> dict[str, bool]:
        """Return the columns that the function has parameters for, and whether each is required."""
        required = {
            name: parameter.default is parameter.empty
            for name, parameter in self.parameters.items()
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        }
        given = _GIVEN | ({"solution_str", *_NO_VERL} if "solution_str" in self.parameters else set())
        return {name: needed for name, needed in required.items() if name not in given}

    def score(self, batch: Batch, log: Log, report: Callable[[str], None]) -> list[float | None]:
        """Return one reward, or None, per completion. `report` is called with an error before the search for its row,
        which calls the function again. Raises Unusable."""
        try:
            result = self._call(batch, log)
        except Unusable as error:
            raise Unusable(f"{self.name}: {error}") from error
        except BaseException as error:  # SystemExit and CancelledError too
            message = f"{self.name} raised {described(error, self.folder)}"
            if isinstance(error, MemoryError):
                message += "; a reward's `memory_gb` limits its memory"
            report(message)
            missing = isinstance(error, ModuleNotFoundError)
            raise Unusable(f"{message}, for {self._row_of_error(batch)}", missing) from error
        try:
            return self._checked(result, batch)
        except Unusable:
            raise
        except Exception as error:  # raised by the object's methods
            what = described(error, self.folder)
            raise Unusable(f"{self.name} returned an object of {type(result).__name__} that raises {what}") from error

    def _row_of_error(self, batch: Batch) -> str:
        for index in range(len(batch.prompts)):
            try:
                self._call(batch.row(index), Log())
            except BaseException:
                return batch.place(index)
        return f"these {len(batch.prompts)} rows together, but for none of them alone"

    def _call(self, batch: Batch, log: Log) -> Any:
        if "solution_str" in self.parameters:
            return [_score(_awaited(self._verl(one)), log) for one in map(batch.row, range(len(batch.prompts)))]
        completions = batch.completions
        if batch.begun and getattr(self.function, "reads_answers", False):  # a built-in reward
            completions = [with_beginning(*each) for each in zip(completions, batch.begun, strict=True)]
        arguments = {**batch.columns, "prompts": batch.prompts, "completions": completions}
        if ENVIRONMENTS in arguments:
            arguments[ENVIRONMENTS] = [Attributes(**_copied(state)) for state in arguments[ENVIRONMENTS]]
        state = SimpleNamespace(**(_START | batch.state))
        return _awaited(
            self._with(arguments | {"trainer_state": state, "log_metric": log.metric, "log_extra": log.column})
        )

    def _verl(self, one: Batch) -> Any:
        columns = {name: one.columns[name][0] for name in _VERL & one.columns.keys()}
        return self._with(_NO_VERL | columns | {"solution_str": text_of(one.completions[0])})

    def _with(self, arguments: dict[str, Any]) -> Any:
        """Call the function with the arguments that it has parameters for."""
        return self.function(
            **{
                name: _copied(value)
                for name, value in arguments.items()
                if self._accepts_any or name in self.parameters
            }
        )

    def _checked(self, result: Any, batch: Batch) -> list[float | None]:
        values = result.tolist() if hasattr(result, "tolist") else result  # an array of NumPy or torch
        if not isinstance(values, list | tuple):
            raise Unusable(f"{self.name} returned {result!r:.60}: expected a list of a number or None per completion")
        if len(values) != len(batch.prompts):
            raise Unusable(f"{self.name} returned {len(values)} rewards for {len(batch.prompts)} completions")
        return [self._number(value, batch, index) for index, value in enumerate(values)]

    def _number(self, value: Any, batch: Batch, index: int) -> float | None:
        plain = value.tolist() if hasattr(value, "tolist") else value
        if plain is None:
            return None
        if not isinstance(plain, Real):
            raise Unusable(
                f"{self.name} returned {value!r:.60}, which is neither a number nor None, for {batch.place(index)}"
            )
        try:
            number = float(plain)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise Unusable(
                f"{self.name} returned {number} for {batch.place(index)}: return None where the reward does not apply"
            )
        return number


def _copied(value: Any) -> Any:
    """Copy a JSON value. Text is immutable, and is shared."""
    if isinstance(value, list):
        return [_copied(each) if isinstance(each, list | dict) else each for each in value]
    if isinstance(value, dict):
        return {name: _copied(each) if isinstance(each, list | dict) else each for name, each in value.items()}
    return value


def _score(value: Any, log: Log) -> Any:
    """Return the score in a verl function's result, and log a dict's other numbers as metrics."""
    if isinstance(value, dict):
        if "score" not in value:
            raise Unusable(f"returned a dict without score: {value!r:.100}")
        for name, number in value.items():
            if name != "score" and isinstance(number, Real):
                log.metric(name, number)
        return value["score"]
    return value[0] if isinstance(value, Sequence) and not isinstance(value, str) and value else value


def text_of(value: Any) -> str:
    """Return the text of a completion or answer, which is text, a number, or a list of messages; those of tools are
    ignored."""
    if isinstance(value, list):
        return "\n".join(text_of(one) for one in value if not (isinstance(one, dict) and one.get("role") == "tool"))
    if isinstance(value, dict):  # a message, or a block of its content
        return text_of(value.get("content") or value.get("text") or "")
    return str(value)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the process's only event loop, since objects that a function keeps between calls (a client, a lock) are
    bound to it."""
    return asyncio.new_event_loop()


def _awaited(value: Any) -> Any:
    return _loop().run_until_complete(value) if inspect.isawaitable(value) else value

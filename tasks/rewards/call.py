"""How a reward is called, and what it may return. Python's own modules alone, since this runs beside users' code.

TRL's call    f(prompts, completions, completion_ids, **columns, trainer_state, log_metric, log_extra)
verl's call   compute_score(data_source, solution_str, ground_truth, extra_info) for each completion; a number, or an
              object with "score". It is known by its parameter `solution_str`.

A function is given what it has parameters for, and everything when it takes `**kwargs`; it may be async.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tasks.load_function import Unusable, described

_GIVEN = {"prompts", "completions", "trainer_state", "log_metric", "log_extra"}  # always
_VERL = {"data_source", "ground_truth", "extra_info"}
_NO_VERL: dict[str, Any] = {"data_source": "", "extra_info": {}}  # in rows that have none
_START = {"global_step": 0, "max_steps": 0, "epoch": 0.0}  # of a trainer's state


@dataclass(frozen=True)
class Batch:
    """Completions to be scored; one prompt, and one value of each column (such as `completion_ids`), for each."""

    prompts: list[Any]
    completions: list[Any]
    columns: dict[str, list[Any]] = field(default_factory=dict)
    state: dict[str, float] = field(default_factory=dict)

    def row(self, index: int) -> "Batch":
        columns = {name: [values[index]] for name, values in self.columns.items()}
        return Batch([self.prompts[index]], [self.completions[index]], columns, self.state)

    def place(self, index: int) -> str:
        """Row `index`, in words."""
        prompt, completion = f"{self.prompts[index]!r:.80}", f"{self.completions[index]!r:.80}"
        return f"row {index + 1} of {len(self.prompts)} (prompt {prompt}, completion {completion})"


@dataclass
class Log:
    """What rewards say beside their values."""

    metrics: dict[str, list[float]] = field(default_factory=dict)
    extra: dict[str, list[Any]] = field(default_factory=dict)

    def metric(self, name: str, value: Any) -> None:
        if not math.isfinite(value):
            raise ValueError(f"log_metric({name!r}, {value}): a finite number is wanted")
        self.metrics.setdefault(str(name), []).append(float(value))

    def column(self, name: str, values: Any) -> None:
        self.extra[str(name)] = [each if isinstance(each, str | int | float | None) else str(each) for each in values]


class Reward:
    """A function that is called as it expects."""

    def __init__(self, name: str, function: Callable[..., Any], folder: Path) -> None:
        self.name, self.function, self.folder = name, function, folder
        try:
            self.parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # written in C
            self.parameters = inspect.signature(lambda **columns: None).parameters
        if not self._takes_all and not {"completions", "solution_str"} & self.parameters.keys():
            raise Unusable(
                f"{name} takes ({', '.join(self.parameters)}): a reward takes completions, and what else it wants of "
                "prompts, completion_ids and the rows' columns, or **kwargs; or verl's solution_str and ground_truth"
            )

    @cached_property
    def _takes_all(self) -> bool:
        return any(each.kind is each.VAR_KEYWORD for each in self.parameters.values())

    @property
    def columns(self) -> dict[str, bool]:
        """The columns that it names, and whether it needs them."""
        named = {
            name: each.default is each.empty
            for name, each in self.parameters.items()
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        }
        given = _GIVEN | ({"solution_str", *_NO_VERL} if "solution_str" in self.parameters else set())
        return {name: needed for name, needed in named.items() if name not in given}

    def score(self, batch: Batch, log: Log, tell: Callable[[str], None]) -> list[float | None]:
        """One reward, or None, for each completion. `tell` hears of an error before the row is looked for. Raises
        Unusable."""
        try:
            given = self._call(batch, log)
        except Unusable as error:
            raise Unusable(f"{self.name}: {error}") from error
        except BaseException as error:  # SystemExit and CancelledError too
            words = f"{self.name} raised {described(error, self.folder)}"
            tell(words)
            raise Unusable(f"{words}, for {self._row_of_error(batch)}") from error
        return self._checked(given, batch)

    def _row_of_error(self, batch: Batch) -> str:
        for index in range(len(batch.prompts)):
            try:
                self._call(batch.row(index), Log())
            except BaseException:
                return batch.place(index)
        return f"these {len(batch.prompts)} rows together; for each of them alone it does not"

    def _call(self, batch: Batch, log: Log) -> Any:
        if "solution_str" in self.parameters:
            return [_score(self._done(self._verl(one)), log) for one in map(batch.row, range(len(batch.prompts)))]
        given = {**batch.columns, "prompts": batch.prompts, "completions": batch.completions}
        state = SimpleNamespace(**(_START | batch.state))
        return self._done(
            self._with(given | {"trainer_state": state, "log_metric": log.metric, "log_extra": log.column})
        )

    def _verl(self, one: Batch) -> Any:
        given = {name: one.columns[name][0] for name in _VERL & one.columns.keys()}
        return self._with(_NO_VERL | given | {"solution_str": text_of(one.completions[0])})

    def _with(self, given: dict[str, Any]) -> Any:
        """The call, with what it has parameters for."""
        return self.function(
            **{name: value for name, value in given.items() if self._takes_all or name in self.parameters}
        )

    def _done(self, value: Any) -> Any:
        return _loop().run_until_complete(value) if inspect.isawaitable(value) else value

    def _checked(self, given: Any, batch: Batch) -> list[float | None]:
        values = given.tolist() if hasattr(given, "tolist") else given  # NumPy's, torch's
        if not isinstance(values, list | tuple):
            raise Unusable(
                f"{self.name} returned {given!r:.60}: a list with a number, or None, for each completion is wanted"
            )
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
            way_out = "return None where the reward does not apply"
            raise Unusable(f"{self.name} returned {number} for {batch.place(index)}: {way_out}")
        return number


def _score(value: Any, log: Log) -> Any:
    """The number in what verl's functions return; what else an object holds are metrics."""
    if isinstance(value, dict):
        if "score" not in value:
            raise Unusable(f"returned an object without score: {value!r:.100}")
        for name, each in value.items():
            if name != "score" and isinstance(each, Real):
                log.metric(name, each)
        return value["score"]
    return value[0] if isinstance(value, Sequence) and not isinstance(value, str) and value else value


def text_of(value: Any) -> str:
    """Of a completion or an answer: text, a number, or the contents of a list of messages."""
    if isinstance(value, list):
        return "\n".join(map(text_of, value))
    if isinstance(value, dict):  # a message, or a part of one's content
        return text_of(value.get("content") or value.get("text") or "")
    return str(value)


_LOOPS: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    """One for the whole process: what a function keeps between calls (a client, a lock) belongs to it."""
    if not _LOOPS:
        _LOOPS.append(asyncio.new_event_loop())
    return _LOOPS[0]

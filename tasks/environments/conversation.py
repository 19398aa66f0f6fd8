"""The process of one conversation: one instance of the environment, and the tools. Standard library only, except to
describe the tools.

It answers messages, lines of JSON on a socket:

    {"reset": columns, "seed"}      {"observation": text or null}
    {"calls": [[name, arguments]]}  {"results": [[text, failed]]}
    {"end": true}                   {"state": {attribute: value}, "reward": number or null}
    {"describe": true}              {"schemas": […], "owns_reward": whether}

or {"error": message} if reset, get_reward or a description fails. A call that raises is answered with the error's text,
as in TRL.
"""

import asyncio
import faulthandler
import inspect
import json
import math
import os
import random
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from baton.tasks.user_code.load_function import SOURCES, Unusable, described

NOT_TOOLS = ("reset", "get_reward")


class EnvironmentInstance:
    """An instance of `environment` (None if there are only `tools`) that answers the messages of one conversation."""

    def __init__(self, environment: type[Any] | None, tools: list[Callable[..., Any]], folder: Path) -> None:
        self.environment = environment() if environment else None
        methods = [getattr(self.environment, name) for name in tool_names(environment)] if environment else []
        self.name = environment.__name__ if environment else "tools"
        named = [(tool.__name__, tool) for tool in [*tools, *methods]]
        self.tools = dict(named)
        self.twice = sorted(name for name in self.tools if [each for each, _ in named].count(name) > 1)
        self.folder = folder

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if "calls" in message:
            return {"results": [self._call(name, arguments) for name, arguments in message["calls"]]}
        try:
            if "reset" in message:
                return {"observation": self._reset(message["reset"])}
            return self._describe() if "describe" in message else self._end()
        except Unusable as error:
            return {"error": f"{self.name}{error}"}
        except BaseException as error:  # SystemExit too
            what = "reset" if "reset" in message else "get_reward"
            return {"error": f"{self.name}.{what} raised {described(error, self.folder / SOURCES)}"}

    def _reset(self, columns: Mapping[str, Any]) -> str | None:
        if self.environment is None:
            return None
        observation = _awaited(_accepted(self.environment.reset, columns))
        if observation is not None and not isinstance(observation, str):
            raise Unusable(f".reset returned {observation!r:.60}; it may return text or None")
        return observation

    def _call(self, name: str, arguments: Any) -> tuple[str, bool]:
        """Run a tool and return its text and whether it failed. The texts of errors are TRL's."""
        try:
            if name not in self.tools:
                raise ValueError(f"Tool {name} not found.")
            return str(_awaited(self.tools[name](**arguments))), False
        except BaseException as error:  # SystemExit and CancelledError too
            return str({"error": str(error) or type(error).__name__}), True

    def _end(self) -> dict[str, Any]:
        attributes = vars(self.environment) if self.environment is not None else {}
        public = {name: value for name, value in attributes.items() if not name.startswith("_")}
        state = {name: value for name, value in public.items() if _is_json(value)}
        return {"state": state, "reward": self._reward()}

    def _reward(self) -> float | None:
        if not hasattr(self.environment, "get_reward"):
            return None
        value = _awaited(self.environment.get_reward())  # type: ignore[union-attr]
        plain = value.item() if hasattr(value, "item") else value  # NumPy's, torch's
        if plain is not None and (not isinstance(plain, int | float) or not math.isfinite(plain)):
            raise Unusable(f".get_reward returned {value!r:.60}; it may return a finite number or None")
        return None if plain is None else float(plain)

    def _describe(self) -> dict[str, Any]:
        """Return the tools' JSON schemas in the form of TRL and chat templates."""
        from transformers.utils import get_json_schema  # heavy, so only a process for this purpose imports it

        if self.environment is not None and not callable(getattr(self.environment, "reset", None)):
            raise Unusable(" has no method reset(**columns), which begins a conversation")
        if not self.tools:
            raise Unusable(" has no public method besides reset and get_reward: the model can call nothing")
        if self.twice:
            raise Unusable(f" has several tools of the name {self.twice[0]}: rename all but one")
        schemas = []
        for name, tool in self.tools.items():
            try:
                schemas.append(get_json_schema(tool))
            except Exception as error:  # it raises exceptions of several kinds
                raise Unusable(
                    f": {name} needs type hints and a Google-style docstring with each argument under `Args:`; {error}"
                ) from error
        return {"schemas": schemas, "owns_reward": hasattr(self.environment, "get_reward")}


def tool_names(environment: type[Any]) -> list[str]:
    """Return the names of the public methods that the model can call, as in TRL."""
    methods = inspect.getmembers(environment, predicate=inspect.isfunction)
    return [name for name, _ in methods if name not in NOT_TOOLS and not name.startswith("_")]


def serve(
    connection: socket.socket,
    stacks: Path,
    folder: Path,
    memory_bytes: int,
    environment: type[Any] | None,
    tools: list[Callable[..., Any]],
) -> None:
    """Answer messages until the other end is closed; does not return. If a message takes longer than its "timeout_s",
    faulthandler writes `stacks` and ends the process."""
    os.setpgid(0, 0)  # the process's children end with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    conversation: EnvironmentInstance | None = None
    with connection.makefile("r") as requests, connection.makefile("w") as answers, stacks.open("w") as file:
        for line in requests:
            message = json.loads(line)
            if "describe" not in message:
                resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
            with _time_limit(message["timeout_s"], file):
                try:
                    if conversation is None:
                        _seed(message.get("seed", 0))
                        conversation = EnvironmentInstance(environment, tools, folder)
                    answer = conversation.answer(message)
                except BaseException as error:  # also from the class's __init__
                    name = environment.__name__ if environment else "tools"
                    answer = {"error": f"{name}() raised {described(error, folder / SOURCES)}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    os._exit(0)


@contextmanager
def _time_limit(timeout_s: float, stacks: IO[str]) -> Iterator[None]:
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=stacks)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _seed(seed: int) -> None:
    """Seed Python's global generator, and NumPy's if it has been imported."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _accepted(function: Callable[..., Any], columns: Mapping[str, Any]) -> Any:
    """Call a function with the columns for which it has parameters, or with all if it accepts `**columns`."""
    parameters = inspect.signature(function).parameters
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return function(**{name: value for name, value in columns.items() if accepts_any or name in parameters})


def _awaited(value: Any) -> Any:
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _is_json(value: Any) -> bool:
    """Return whether JSON represents a value unchanged: a tuple would become a list, and a number as a key would become
    text."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()  # raises UnicodeEncodeError for half of a surrogate pair
        return bool(json.loads(text) == value)
    except (TypeError, ValueError, RecursionError):
        return False

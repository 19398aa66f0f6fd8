"""Run rewards in a subprocess: `python -P -m baton.tasks.rewards.worker FOLDER builtin|user MEMORY_GB`
(user_process.py). MEMORY_GB is the limit of each of its processes, beyond which allocations fail; 0 is no limit.

A request is a line of JSON on standard input, and its answer is a line of JSON on standard output:

    {"functions": [{"name", "module", "attribute", "in_folder"} or {"name", "builtin", "options"}], "timeout_s"}
    {"batch": {prompts, completions, columns, state}, "timeout_s": {name: seconds}}
    {"save": true}    {"load": {name: state}}

Lines {"at": name, "limit", "limit_s"} before the answer report which function runs, and how long it may take. The
functions' output goes to standard error. When a function exceeds its time limit, faulthandler ends the process, even if
the function holds the GIL, and writes the stack to FOLDER/stacks. When standard input closes, the process and all
processes that it has started end.
"""

import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from baton.tasks.rewards.call import Batch, Log, Reward
from baton.tasks.user_code.load_function import (
    SOURCES,
    STACKS,
    Unusable,
    end_together,
    leave_project,
    load_function,
    reserve_pipes,
)


class RewardWorker:
    """Loads the functions and answers requests."""

    def __init__(self, folder: Path, send: Callable[[dict[str, Any]], None]) -> None:
        self.folder, self.send = folder, send
        self.rewards: dict[str, Reward] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "functions" in request:
            return {"columns": self._open_all(request["functions"], request["timeout_s"])}
        if "batch" in request:
            return self._score(Batch(**request["batch"]), request["timeout_s"])
        if "load" in request:
            for name, state in request["load"].items():
                if name in self.rewards and _keeps_state(self.rewards[name]):
                    self.rewards[name].function.load_state_dict(state)  # type: ignore[attr-defined]
            return {}
        return {"states": {name: _state(reward) for name, reward in self.rewards.items() if _keeps_state(reward)}}

    def _open_all(self, functions: list[dict[str, Any]], timeout_s: float) -> dict[str, dict[str, bool]]:
        errors: list[Unusable] = []
        for function in functions:
            try:
                with self._time_limit(function["name"], timeout_s, "for its import"):
                    self.rewards[function["name"]] = self._open(function)
            except Unusable as error:
                errors.append(error)
        if errors:
            raise Unusable("\nreward ".join(map(str, errors)), all(error.not_installed for error in errors))
        return {name: reward.columns for name, reward in self.rewards.items()}

    def _open(self, request: dict[str, Any]) -> Reward:
        name, sources = request["name"], self.folder / SOURCES
        if "builtin" in request:
            module = importlib.import_module(f"baton.tasks.rewards.builtin.{request['builtin']}")
            builtin = getattr(module, request["class"]).model_validate(request["options"])
            builtin.prepare()
            return Reward(name, builtin, sources)
        try:
            function = load_function(sources, request["module"], request["attribute"], in_folder=request["in_folder"])
        except Unusable as error:
            raise Unusable(f"{name}: {error}", error.not_installed) from error
        return Reward(name, function, sources)

    def _score(self, batch: Batch, timeouts_s: dict[str, float]) -> dict[str, Any]:
        log = Log()
        rewards = {}
        for name, reward in self.rewards.items():
            if name not in timeouts_s:
                continue  # not requested
            with self._time_limit(name, timeouts_s[name], "its timeout_s"):
                rewards[name] = reward.score(batch, log, lambda error, at=name: self.send({"at": at, "error": error}))  # type: ignore[misc]
        metrics = {name: sum(values) / len(values) for name, values in log.metrics.items()}
        return {"rewards": rewards, "metrics": metrics, "extra": log.extra}

    @contextmanager
    def _time_limit(self, name: str, timeout_s: float, which: str) -> Iterator[None]:
        self.send({"at": name, "limit": f"{timeout_s:g} s ({which})", "limit_s": timeout_s})
        with (self.folder / STACKS).open("w") as stacks:
            faulthandler.dump_traceback_later(timeout_s, exit=True, file=stacks)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()


def _keeps_state(reward: Reward) -> bool:
    return all(hasattr(reward.function, name) for name in ("state_dict", "load_state_dict"))


def _state(reward: Reward) -> Any:
    state = reward.function.state_dict()  # type: ignore[attr-defined]
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise Unusable(f"{reward.name} has a state_dict() that is not JSON: {error}") from error
    return state


def main() -> None:
    folder, builtin, memory_bytes = Path(sys.argv[1]), sys.argv[2] == "builtin", int(float(sys.argv[3]) * 1e9)
    end_together()
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    if not builtin:
        leave_project()
    requests, answers = reserve_pipes()
    waiting: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def receive() -> None:
        for line in requests:
            waiting.put(json.loads(line))
        os.killpg(0, signal.SIGKILL)

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    threading.Thread(target=receive, name="requests", daemon=True).start()
    worker = RewardWorker(folder, send)
    while True:
        try:
            send({"answer": worker.answer(waiting.get())})
        except Unusable as error:
            send({"error": str(error), "not_installed": error.not_installed})


if __name__ == "__main__":
    main()

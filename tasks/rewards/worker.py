"""The process that rewards run in: `python -P -m tasks.rewards.worker FOLDER own|theirs`, see process.py.

A request is a line of JSON on standard input, its answer a line of JSON on standard output:

    {"functions": [{"name", "module", "attribute", "in_folder"} or {"name", "builtin", "options"}], "patience_s"}
    {"batch": {prompts, completions, columns, state}, "patience_s": {name: seconds}}
    {"save": true}    {"load": {name: state}}

Before the answer come lines {"at": name, "limit"} that say what is run. What functions print goes to standard error.
A function that takes longer than it may ends the process from C, also where it never lets go of the interpreter, and
leaves where it stood in FOLDER/stacks. When standard input closes, the process and its children end.
"""

import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tasks.load_function import Unusable, load_function
from tasks.rewards.call import Batch, Log, Reward

STACKS = "stacks"
SOURCES = "sources"


class Worker:
    """The functions, and the answers to requests."""

    def __init__(self, folder: Path, tell: Callable[[dict[str, Any]], None]) -> None:
        self.folder, self.tell = folder, tell
        self.rewards: dict[str, Reward] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "functions" in request:
            return {"columns": self._open_all(request["functions"], request["patience_s"])}
        if "batch" in request:
            return self._score(Batch(**request["batch"]), request["patience_s"])
        if "load" in request:
            for name, state in request["load"].items():
                if name in self.rewards and _keeps_state(self.rewards[name]):
                    self.rewards[name].function.load_state_dict(state)  # type: ignore[attr-defined]
            return {}
        return {"states": {name: _state(reward) for name, reward in self.rewards.items() if _keeps_state(reward)}}

    def _open_all(self, asked: list[dict[str, Any]], patience_s: float) -> dict[str, dict[str, bool]]:
        errors = []
        for each in asked:
            try:
                with self._watched(each["name"], patience_s, "for its import"):
                    self.rewards[each["name"]] = self._open(each)
            except Unusable as error:
                errors.append(str(error))
        if errors:
            raise Unusable("\nreward ".join(errors))
        return {name: reward.columns for name, reward in self.rewards.items()}

    def _open(self, asked: dict[str, Any]) -> Reward:
        name, sources = asked["name"], self.folder / SOURCES
        if "builtin" in asked:
            module = importlib.import_module(f"tasks.rewards.builtin.{asked['builtin']}")
            return Reward(name, getattr(module, asked["class"]).model_validate(asked["options"]), sources)
        try:
            function = load_function(sources, asked["module"], asked["attribute"], in_folder=asked["in_folder"])
        except Unusable as error:
            raise Unusable(f"{name}: {error}") from error
        return Reward(name, function, sources)

    def _score(self, batch: Batch, patience_s: dict[str, float]) -> dict[str, Any]:
        log = Log()
        values = {}
        for name, reward in self.rewards.items():
            with self._watched(name, patience_s[name], "its timeout_s"):
                values[name] = reward.score(batch, log, lambda words, at=name: self.tell({"at": at, "error": words}))  # type: ignore[misc]
        metrics = {name: sum(each) / len(each) for name, each in log.metrics.items()}
        return {"rewards": values, "metrics": metrics, "extra": log.extra}

    @contextmanager
    def _watched(self, name: str, patience_s: float, which: str) -> Iterator[None]:
        self.tell({"at": name, "limit": f"{patience_s:g} s ({which})"})
        with (self.folder / STACKS).open("w") as stacks:
            faulthandler.dump_traceback_later(patience_s, exit=True, file=stacks)
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
        raise Unusable(f"{reward.name} has a state_dict() that JSON cannot hold: {error}") from error
    return state


def main() -> None:
    folder, own = Path(sys.argv[1]), sys.argv[2] == "own"
    if not own:  # a user's function finds its own modules and what is installed, not ours
        ours = str(Path(__file__).parents[2])
        sys.path[:] = [place for place in sys.path if place != ours]
        program = sys.modules["__main__"]
        program.__spec__, program.__file__ = None, None  # or processes that a function spawns would look for it there
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    waiting: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def receive() -> None:
        for line in requests:
            waiting.put(json.loads(line))
        os.killpg(0, signal.SIGKILL)

    def tell(words: dict[str, Any]) -> None:
        answers.write(json.dumps(words) + "\n")
        answers.flush()

    threading.Thread(target=receive, name="requests", daemon=True).start()
    worker = Worker(folder, tell)
    while True:
        try:
            tell({"answer": worker.answer(waiting.get())})
        except Unusable as error:
            tell({"error": str(error)})


if __name__ == "__main__":
    main()

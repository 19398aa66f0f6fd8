"""Import an environment and tools once, and fork a process for each conversation:
`python -P -m baton.tasks.environments.host FOLDER`, see environments.py and tasks/rewards/user_process.py.

A request is a line of JSON on standard input, its answer a line of JSON on standard output:

    {"open": {"environment": place or null, "tools": [place], "memory_gb"}}    a place: {"module", …}
    {"tell": {id: message}, "timeout_s"}        {id: answer} of the conversations' processes (conversation.py)
    {"drop": true}                              ends all conversations

A conversation begins with its first message. If its process ends, sends an invalid answer, or is killed since it takes
too long, the answer is {"lost": reason}. A fork takes milliseconds, has its own memory, and its leaks end with it.
While conversations work, {"at", "limit", "limit_s"} reports that this process works. Standard library only.
"""

import json
import math
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baton.infra.process.limits import cores
from baton.tasks.environments.conversation import serve
from baton.tasks.user_code.load_function import (
    SOURCES,
    Unusable,
    end_together,
    leave_project,
    load_function,
    reserve_pipes,
    stuck_at,
)

AT_ONCE = 4 * cores()  # conversations that work at the same time; more would only wait for each other
GRACE_S = 5.0  # beyond its time limit, until a process that has not ended itself is killed
LOAD_S = 600.0  # for an import, which may load a model
SILENT_S = 60.0  # time without a message from this process after which it counts as hung
ALIVE_S = 5.0  # time between two messages that this process works
MOST_BYTES = 1 << 26  # maximum size of an answer


@dataclass
class Child:
    """A conversation's process."""

    pid: int
    socket: socket.socket
    stacks: Path
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    received: bytes = b""
    deadline: float = 0.0
    killed: bool = False

    def send(self) -> bool:
        """Send as much of the message as the socket accepts now. Returns whether all was sent. A stopped process
        accepts nothing."""
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            return True  # the process has ended, which the next read reports
        return not self.unsent

    def kill(self) -> None:
        """Kill the process and its children."""
        for kill in (os.killpg, os.kill):  # it may not have a group yet
            try:
                kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Host:
    """The processes of all conversations."""

    def __init__(self, folder: Path, pipes: tuple[Any, ...], send: Callable[[dict[str, Any]], None]) -> None:
        self.folder, self.pipes, self.send = folder, pipes, send
        self.children: dict[str, Child] = {}
        self.environment: type[Any] | None = None
        self.tools: list[Callable[..., Any]] = []
        self.memory_bytes, self.begun = 0, 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "open" in request:
            return self._open(**request["open"])
        if "drop" in request:
            for identity in list(self.children):
                self._lose(identity)
            return {}
        return self.exchange(request["tell"], request["timeout_s"])

    def _open(
        self, environment: dict[str, Any] | None, tools: list[dict[str, Any]], memory_gb: float
    ) -> dict[str, Any]:
        self.memory_bytes = int(memory_gb * 1e9)
        self.environment = self._load(environment) if environment else None  # type: ignore[assignment]
        if environment and not isinstance(self.environment, type):
            raise Unusable(f"{environment['attribute']} is not a class")
        self.tools = [self._load(tool) for tool in tools]
        described = self.exchange({"": {"describe": True}}, LOAD_S)[""]
        self._lose("")
        if failed := described.get("error") or described.get("lost"):
            raise Unusable(failed)
        return described

    def _load(self, place: dict[str, Any]) -> Callable[..., Any]:
        try:
            return load_function(self.folder / SOURCES, **place)
        except Unusable as error:
            raise Unusable(f"{place['attribute']}: {error}") from error

    def exchange(self, messages: Mapping[str, dict[str, Any]], timeout_s: float) -> dict[str, dict[str, Any]]:
        """Send each conversation its message, and wait for the answers."""
        waiting, answers = deque(messages.items()), {}
        reported_at = time.monotonic()
        with selectors.DefaultSelector() as selector:
            while waiting or selector.get_map():
                while waiting and len(selector.get_map()) < AT_ONCE:
                    identity, message = waiting.popleft()
                    child = self._address(identity, message, timeout_s)
                    selector.register(child.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, identity)
                for key, events in selector.select(timeout=1.0):
                    identity = key.data
                    child = self.children[identity]
                    if events & selectors.EVENT_WRITE and child.send():
                        selector.modify(child.socket, selectors.EVENT_READ, identity)
                    if events & selectors.EVENT_READ:
                        chunk = _received(child.socket)
                        child.received += chunk
                        if not chunk or child.received.endswith(b"\n") or len(child.received) > MOST_BYTES:
                            selector.unregister(child.socket)
                            answer = _answer(child.received, messages[identity]) if chunk else None
                            answers[identity] = answer or self._lose(identity, sent=bool(chunk))
                            child.received = b""
                if time.monotonic() > reported_at + ALIVE_S:
                    reported_at = time.monotonic()
                    self.send({"at": "environment", "limit": f"{SILENT_S:g} s", "limit_s": SILENT_S})
                self._kill_late(key.data for key in selector.get_map().values())
        return answers

    def _address(self, identity: str, message: dict[str, Any], timeout_s: float) -> Child:
        """Return the conversation's process, started if necessary, with a message to send."""
        child = self.children.get(identity) or self._fork(identity)
        limit_s = timeout_s * max(1, len(message.get("calls", ())))
        child.deadline = time.monotonic() + limit_s + GRACE_S
        child.unsent = memoryview(json.dumps(message | {"timeout_s": limit_s}).encode() + b"\n")
        return child

    def _fork(self, identity: str) -> Child:
        self.begun += 1
        parent_end, child_end = socket.socketpair()
        stacks = self.folder / f"stacks-{self.begun}"
        pid = os.fork()
        if pid == 0:
            try:
                for other in [parent_end, *(child.socket for child in self.children.values()), *self.pipes]:
                    other.close()  # the others notice the end of this process by the end of its socket
                serve(child_end, stacks, self.folder, self.memory_bytes, self.environment, self.tools)
            finally:
                os._exit(1)
        child_end.close()
        parent_end.setblocking(False)
        self.children[identity] = Child(pid, parent_end, stacks)
        return self.children[identity]

    def _kill_late(self, identities: Any) -> None:
        for child in [self.children[identity] for identity in identities]:
            if time.monotonic() > child.deadline and not child.killed:
                child.killed = True
                child.kill()

    def _lose(self, identity: str, *, sent: bool = False) -> dict[str, Any]:
        """End a conversation's process and return the reason why it is lost. `sent` is whether it sent an invalid
        answer."""
        child = self.children.pop(identity)
        child.socket.close()
        child.kill()
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        where = stuck_at(child.stacks, self.folder / SOURCES)
        child.stacks.unlink(missing_ok=True)
        if where or child.killed:
            return {"lost": f"it did not finish within its time limit{', ' if where else ''}{where}"}
        if sent:
            return {"lost": "its process sent an invalid answer"}
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return {"lost": f"its process {ending}"}


def _answer(data: bytes, message: dict[str, Any]) -> dict[str, Any] | None:
    """Return a conversation's answer to a message (conversation.py); None if it is invalid, since the process may have
    run any code."""
    try:
        answer = dict(json.loads(data))
    except (TypeError, ValueError, RecursionError):
        return None
    match message:
        case {"calls": calls}:
            results = answer.get("results")
            right = isinstance(results, list) and len(results) == len(calls) and all(map(_is_result, results))
        case _ if "error" in answer:
            right = isinstance(answer["error"], str)
        case {"reset": _}:
            right = isinstance(answer.get("observation", 0), str | None)
        case {"describe": _}:
            right = isinstance(answer.get("schemas"), list)
        case _:
            reward = answer.get("reward")
            number = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
            right = isinstance(answer.get("state"), dict) and (reward is None or number)
    return answer if right else None


def _is_result(result: Any) -> bool:
    return isinstance(result, list) and list(map(type, result)) == [str, bool]


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except OSError:
        return b""  # it has been killed


def main() -> None:
    end_together()
    leave_project()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one file per conversation
    requests, answers = reserve_pipes()

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    host = Host(Path(sys.argv[1]), (requests, answers), send)
    send({"at": "environment", "limit": f"{LOAD_S:g} s (for its import)"})
    for line in requests:
        try:
            send({"answer": host.answer(json.loads(line))})
        except Unusable as error:
            send({"error": str(error)})
    host.answer({"drop": True})


if __name__ == "__main__":
    main()

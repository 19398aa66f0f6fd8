"""Run the program, and perform the requests of its tests. This process runs in the sandbox, beside tests_side.py.

Nothing in this process is protected from the program, which can give any answer to a request, but can do nothing else.
"""

import builtins
import io
import os
import sys
import types
from functools import cache
from importlib import import_module
from typing import Any

from baton.tasks.rewards.remote.wire import BINARY, OPERATIONS, PLAIN, PROBED, Ended, Peer

MOST_PRINTED = 1 << 16  # bytes of a call's output that its tests see


class Program(Peer):
    """The functions of the module `solution`, which the tests call."""

    def __init__(self) -> None:
        super().__init__((3, 4))
        self.module = sys.modules["solution"] = types.ModuleType("solution")
        self.number(self.module)  # 0
        self.printed = io.BytesIO()
        sys.stdout = io.TextIOWrapper(self.printed, "utf-8", write_through=True)
        self._watched: dict[str, Any] = {}

    def perform(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if not isinstance(function, str):
            return function(*arguments, **keywords)
        if function == "watch":
            self._watched = dict.fromkeys(arguments, self)  # an object that no global is equal to
            return None
        if function == "await":
            return _loop().run_until_complete(*arguments)
        if function in ("anext", "aenter", "aexit"):
            return _loop().run_until_complete(getattr(arguments[0], f"__{function}__")(*arguments[1:]))
        return _OPERATIONS[function](*arguments, **keywords)

    def answer(self, request: Any) -> dict[str, Any]:
        answer = super().answer(request)
        answer["names"] = {}
        for name in self._watched.keys() & vars(self.module).keys():
            try:
                value = self.encoded(vars(self.module)[name], {})
            except RecursionError:  # a list that contains itself
                continue
            if value != self._watched[name]:
                answer["names"][name] = self._watched[name] = value
        if self.printed.tell():
            answer["out"] = self.printed.getvalue()[:MOST_PRINTED].decode(errors="replace")
            self.printed.seek(0)
            self.printed.truncate()
        return answer

    def encoded_object(self, value: Any) -> Any:
        """Encode an object with whether it is a class, and the program's classes of which it is an instance or a
        subclass."""
        is_class = isinstance(value, type)
        classes = (value if is_class else type(value)).__mro__
        return [
            *super().encoded_object(value),
            is_class,
            [self.number(each) for each in classes if each.__module__ == self.module.__name__],
            _methods(type(value)),
        ]

    def represent(self, kind: str, number: int, *more: Any) -> Any:
        return Given()

    def imported(self, module: str, name: str) -> Any:
        target: Any = import_module(module)
        for part in name.split(".") if name else ():
            target = getattr(target, part)
        return target


def _forwarded(operation: str, *, reflected: bool = False) -> Any:
    def forwarded(self: Any, *others: Any) -> Any:
        return self.__peer__.ask(operation, *((*others, self) if reflected else (self, *others)))

    return forwarded


_NAMES = {"and": "and_", "or": "or_"}  # names of functions that differ from those of the methods
_Forwarding: Any = type(
    "_Forwarding",
    (),
    {"__slots__": ()}
    | {f"__{name}__": _forwarded(name) for name in OPERATIONS.keys() - {"getattr", "isinstance", "issubclass"}}
    | {f"__{name}__": _forwarded(_NAMES.get(name, name)) for name in BINARY}
    | {f"__r{name}__": _forwarded(_NAMES.get(name, name), reflected=True) for name in BINARY},
)


class Given(_Forwarding):  # type: ignore[misc]
    """An object of the tests. A function can only be called."""

    __slots__ = ()
    __peer__: Program
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        return self.__peer__.ask("getattr", self, name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.__peer__.ask(self, *arguments, **keywords)

    def __eq__(self, other: Any) -> Any:
        return self is other or self._asked("eq", NotImplemented, other)

    def __str__(self) -> str:
        return str(self._asked("str", object.__repr__(self)))

    def __repr__(self) -> str:
        return str(self._asked("repr", object.__repr__(self)))

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)

    def _asked(self, operation: str, otherwise: Any, *others: Any) -> Any:
        try:
            return self.__peer__.ask(operation, self, *others)
        except AttributeError:
            return otherwise


def _methods(kind: type[Any]) -> int:
    """Return which of PROBED the objects of a class have, as bits. Objects with items can also be iterated over and
    reversed."""
    spaces = [vars(each) for each in kind.__mro__]

    def has(name: str) -> bool:
        return next((space[name] for space in spaces if name in space), None) is not None

    items = ("iter", "reversed") if has("__getitem__") else ()
    return sum((has(f"__{name}__") or name in items) << bit for bit, name in enumerate(PROBED))


def _state(value: Any) -> tuple[bool, dict[str, Any]]:
    """Return whether an object's class compares its objects, and the attributes and content that the tests compare."""
    kind = type(value)
    slots = [slot for each in kind.__mro__ for slot in vars(each).get("__slots__", ())]
    state = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)} | getattr(value, "__dict__", {})
    compares: Any = kind.__eq__
    return compares is not object.__eq__, state | ({"()": value} if isinstance(value, PLAIN) else {})


_OPERATIONS = OPERATIONS | {"state": _state, "aiter": lambda value: value.__aiter__()}


@cache
def _loop() -> Any:
    """Return the only event loop, since objects that a coroutine leaves are bound to it."""
    return import_module("asyncio").new_event_loop()


def main() -> None:
    program = Given.__peer__ = Program()
    builtins.input = lambda prompt="", /: program.ask("input", prompt)
    with open("solution.py", "rb") as file:  # noqa: PTH123
        text = file.read().decode(errors="surrogatepass")
    exec(compile(text, "solution.py", "exec"), vars(program.module))
    try:
        while True:
            program.send(program.answer(program.received()["do"]))
    except Ended:
        os._exit(0)


main()

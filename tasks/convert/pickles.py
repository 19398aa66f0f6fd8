"""Parse a pickle as plain data, without importing, calling or constructing anything that it names.

A pickle is a program for a stack machine. This module implements the machine without side effects: a name becomes a
`Name`, a call a `Call`, a dictionary a list of `Pairs` (so that nothing is hashed or compared), and no value is
traversed, so that depth and sharing cost nothing. Each opcode's work is proportional to its size in bytes, so the
pickle's size bounds time and memory. Opcodes that pickle protocol 2 and later do not emit for checkpoints are rejected.

Standard library only, since this runs in a child process without site-packages (tasks/convert/read_metadata.py).
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

# None, bool, int, float, str, bytes, tuple, list, or one of the classes below
Value: TypeAlias = object

MOST_SHOWN = 80  # characters of a name in a message


class PickleError(ValueError):
    """Raised for a pickle that is damaged, or contains something that no checkpoint needs."""


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """The name of a function or class, such as "torch.Size"."""

    name: str


@dataclass(slots=True, eq=False)
class Pairs:
    """A dictionary's keys and values, in order."""

    items: list[tuple[Value, Value]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Call:
    """An object, as the call that would construct it and the state that would be set."""

    name: str
    arguments: tuple[Value, ...]
    state: Value = None


@dataclass(frozen=True, slots=True, eq=False)
class Persistent:
    """A persistent id, which refers to data outside of the pickle, with torch.save a tensor's storage."""

    value: Value


def load(content: bytes, allowed: Callable[[str], bool]) -> Value:
    """Return the value of a pickle. `allowed`: whether a name may occur. Raises PickleError."""
    machine = _Machine(allowed)
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                return machine.only()
            step = _STEPS.get(opcode.name)
            if step is None:
                raise PickleError(f"has the opcode {opcode.name}, which no checkpoint needs")
            step(machine, argument)
    except PickleError:
        raise
    except (ValueError, IndexError, KeyError, RecursionError) as error:
        # genops raises ValueError, an empty stack IndexError, and an unknown memo KeyError
        raise PickleError(f"is damaged or truncated ({type(error).__name__}: {shown(str(error))})") from error
    raise PickleError("is truncated: its end is missing")


def shown(text: str) -> str:
    """Return text from a file for a message: printable, on one line, and truncated."""
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def kind(value: Value) -> str:
    """Return a value's type, for a message."""
    match value:
        case Call(name):
            return shown(name)
        case Name(name):
            return f"the name {shown(name)}"
        case Pairs():
            return "dict"
    return type(value).__name__


def _constructed(function: str, arguments: tuple[Value, ...]) -> Value:
    """Return the value that a call constructs."""
    match function, arguments:
        case "collections.OrderedDict", ():
            return Pairs()
        case "builtins.getattr", (Name(name), str(member)) if member.isidentifier() and not member.startswith("_"):
            return Call(name, (member,))
        case "builtins.getattr", _:
            raise PickleError(f"calls getattr with {' and '.join(map(kind, arguments))}: no member of an enumeration")
    return Call(function, arguments)


class _Machine:
    def __init__(self, allowed: Callable[[str], bool]) -> None:
        self._allowed = allowed
        self._stack: list[Value] = []
        self._marked: list[list[Value]] = []  # the stacks below each mark
        self._memo: dict[int, Value] = {}
        self._names: dict[str, Name] = {}

    def only(self) -> Value:
        if len(self._stack) != 1 or self._marked:
            raise PickleError(f"ends with {len(self._stack)} values, not one")
        return self._stack[0]

    def push(self, value: Value) -> None:
        self._stack.append(value)

    def pop(self) -> Value:
        return self._stack.pop()

    def mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def to_mark(self) -> list[Value]:
        above, self._stack = self._stack, self._marked.pop()
        return above

    def remember(self, key: int | None) -> None:
        self._memo[len(self._memo) if key is None else key] = self._stack[-1]

    def recall(self, key: int) -> None:
        self._stack.append(self._memo[key])

    def name(self, name: str) -> None:
        if name not in self._names:
            if not self._allowed(name):
                raise PickleError(f"is a pickle that imports {shown(name)}; it was not executed")
            self._names[name] = Name(name)
        self._stack.append(self._names[name])

    def stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise PickleError(f"imports a name made of {kind(module)} and {kind(name)}")
        self.name(f"{module}.{name}")

    def tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("too few values")
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not (isinstance(function, Name) and isinstance(arguments, tuple)):
            raise PickleError(f"calls {kind(function)} with {kind(arguments)}")
        self._stack.append(_constructed(function.name, arguments))

    def build(self) -> None:
        state, target = self.pop(), self._stack[-1]
        if not isinstance(target, Call) or target.state is not None:
            raise PickleError(f"sets the attributes of {kind(target)}, which is not a new object")
        target.state = state

    def extend(self, more: list[Value]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise PickleError(f"appends to {kind(target)}")
        target.extend(more)

    def update(self, more: list[Value]) -> None:
        target = self._stack[-1]
        if not isinstance(target, Pairs) or len(more) % 2:
            raise PickleError(f"sets {len(more)} keys and values of {kind(target)}")
        target.items.extend(zip(more[::2], more[1::2], strict=True))

    def pair(self) -> None:
        value, key = self.pop(), self.pop()
        self.update([key, value])


def _value(machine: _Machine, argument: object) -> None:
    machine.push(argument)


def _nothing(machine: _Machine, argument: object) -> None:
    pass


_VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
           "BINBYTES", "SHORT_BINBYTES")  # fmt: skip

_STEPS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(_VALUES, _value),
    "PROTO": _nothing,
    "FRAME": _nothing,
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE1": lambda machine, _: machine.tuple(1),
    "TUPLE2": lambda machine, _: machine.tuple(2),
    "TUPLE3": lambda machine, _: machine.tuple(3),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.to_mark())),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.to_mark()),
    "EMPTY_DICT": lambda machine, _: machine.push(Pairs()),
    "SETITEM": lambda machine, _: machine.pair(),
    "SETITEMS": lambda machine, _: machine.update(machine.to_mark()),
    "MARK": lambda machine, _: machine.mark(),
    "POP": lambda machine, _: machine.pop(),
    "POP_MARK": lambda machine, _: machine.to_mark(),
    "BINPUT": lambda machine, key: machine.remember(key),
    "LONG_BINPUT": lambda machine, key: machine.remember(key),
    "MEMOIZE": lambda machine, _: machine.remember(None),
    "BINGET": lambda machine, key: machine.recall(key),
    "LONG_BINGET": lambda machine, key: machine.recall(key),
    "GLOBAL": lambda machine, name: machine.name(name.replace(" ", ".", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.stack_name(),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": lambda machine, _: machine.push(Persistent(machine.pop())),
}

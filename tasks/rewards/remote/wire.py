"""Share objects between two processes: data is copied, anything else stays in its process and is called remotely.

Two pipes connect a program with its tests (program_side.py, tests_side.py). A message is a line of JSON:

    {"do": [[function, argument, …], keywords]}    a function of the other process, or the name of an operation
    {"is": value} or {"raises": exception}         the answer, with "changed": [[number, content]] for the containers
                                                   among the arguments that the function has changed

A value is JSON's null, true, a number or a text, or a list of its kind and its content: `["set", [1, 2]]`. Nothing is
unpickled and no class is imported, so that whatever was sent, only values of builtin types arrive. Standard library
only.
"""

import builtins
import json
import operator
import os
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

MOST_BYTES = 1 << 26  # maximum size of a message
READ_BYTES = 1 << 16  # read at once, the capacity of a pipe
LARGE = 1 << 63  # integers from this size on are sent as text
JSON = {type(None), bool, int, float, str}
MUTABLE: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (list, dict, set, deque, bytearray, OrderedDict, Counter, defaultdict)
}
FIXED: dict[str, type[Any]] = {"tuple": tuple, "frozenset": frozenset}
SINGLE = {"Ellipsis": ..., "NotImplemented": NotImplemented}
TYPES = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and not name.startswith("_") and name not in ("type", "super", "property")
}
FACTORIES: dict[str, type[Any]] = {kind.__name__: kind for kind in (int, float, str, list, dict, set, tuple, bool)}
PLAIN = (int, float, str, bytes, bytearray, tuple, list, dict, set, frozenset)  # subclasses are sent as these


def _text(value: Any) -> tuple[str]:
    return (str(value),)


def _iso(value: Any) -> tuple[str]:
    return (value.isoformat(),)


def _match(pattern: Any, text: Any, start: int, end: int, span: tuple[int, int]) -> Any:
    if type(pattern) is not import_module("re").Pattern:
        raise Malformed("it is no pattern")
    found = (pattern.match(text, start, end), pattern.fullmatch(text, start, end), *pattern.finditer(text, start, end))
    return next(each for each in found if each and each.span() == span)


def _namespace(content: dict[str, Any]) -> Any:
    return import_module("types").SimpleNamespace(**content)


# Methods that are reported for an object
PROBED = ("call", "iter", "next", "len", "reversed", "enter", "await", "aenter", "aiter", "anext")
IN_PLACE = (
    "iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow", "ilshift", "irshift", "iand", "ior",
    "ixor",
)  # fmt: skip
_BOUNDS = operator.attrgetter("start", "stop", "step")
# Class name -> its module, a function that splits a value into parts, and the name in the module, or the function, that
# makes a value of the parts
LIBRARY: dict[str, tuple[str, Callable[[Any], Sequence[Any]], str | Callable[..., Any]]] = {
    "complex": ("builtins", operator.attrgetter("real", "imag"), "complex"),
    "bytes": ("builtins", lambda value: (value.decode("latin-1"), "latin-1"), "bytes"),
    "range": ("builtins", _BOUNDS, "range"),
    "slice": ("builtins", _BOUNDS, "slice"),
    "dict_keys": ("builtins", lambda value: (list(value),), lambda keys: dict.fromkeys(keys).keys()),
    "dict_values": ("builtins", lambda value: (list(value),), lambda values: dict(enumerate(values)).values()),
    "dict_items": ("builtins", lambda value: (list(value),), lambda items: dict(items).items()),
    "Decimal": ("decimal", _text, "Decimal"),
    "Fraction": ("fractions", operator.attrgetter("numerator", "denominator"), "Fraction"),
    "date": ("datetime", _iso, "date.fromisoformat"),
    "time": ("datetime", _iso, "time.fromisoformat"),
    "datetime": ("datetime", _iso, "datetime.fromisoformat"),
    "timedelta": ("datetime", operator.attrgetter("days", "seconds", "microseconds"), "timedelta"),
    "UUID": ("uuid", _text, "UUID"),
    "PosixPath": ("pathlib", _text, "PosixPath"),
    "IPv4Address": ("ipaddress", _text, "IPv4Address"),
    "IPv6Address": ("ipaddress", _text, "IPv6Address"),
    "IPv4Network": ("ipaddress", _text, "IPv4Network"),
    "IPv6Network": ("ipaddress", _text, "IPv6Network"),
    "Pattern": ("re", operator.attrgetter("pattern", "flags"), "compile"),
    "Match": ("re", lambda value: (value.re, value.string, value.pos, value.endpos, value.span()), _match),
    "SimpleNamespace": ("types", lambda value: (vars(value),), _namespace),
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(builtins, name)
        for name in (
            "getattr", "setattr", "delattr", "len", "iter", "next", "reversed", "bool", "str", "repr", "int", "float",
            "complex", "bytes", "hash", "abs", "round", "dir", "format", "divmod", "pow", "isinstance", "issubclass",
        )
    },
    **{
        name: getattr(operator, name)
        for name in (
            "index", "neg", "pos", "invert", "getitem", "setitem", "delitem", "contains", "eq", "ne", "lt", "le", "gt",
            "ge", "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "lshift", "rshift", "and_", "or_", "xor",
            *IN_PLACE,
        )
    },
    **{name: operator.methodcaller(f"__{name}__") for name in ("enter", "trunc", "floor", "ceil")},
    "exit": lambda value, *error: value.__exit__(*error),
    "copy": lambda value: import_module("copy").copy(value),
    "deepcopy": lambda value: import_module("copy").deepcopy(value),
}  # fmt: skip
BINARY = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "or",
    "xor",
)  # fmt: skip


class Malformed(ValueError):
    """Raised for a message that cannot be read."""


class Ended(ConnectionError):
    """Raised if the other process has closed its pipe."""


class Peer:
    """This process's end of the connection. A subclass defines how requests are performed, and how objects of the other
    process are represented."""

    def __init__(self, pipes: tuple[int, int]) -> None:
        self._from, self._to = pipes
        self._read = bytearray()  # bytes of the next messages
        self._exported: list[Any] = []  # objects that the other process knows by number
        self._numbers: dict[int, int] = {}  # ids of exported objects -> numbers
        self._proxies: dict[int, Any] = {}  # numbers -> local representations
        self._ids: dict[int, int] = {}  # ids of local representations -> numbers

    # requests

    def ask(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call a function of the other process. Raises its exceptions, Malformed and Ended."""
        value, error = self.exchange(function, arguments, keywords)
        if error is not None:
            raise error
        return value

    def exchange(
        self, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[Any, BaseException | None]:
        """Return the result of a function of the other process, and its exception. Raises Malformed and Ended."""
        sent: list[Any] = []
        known: dict[int, int] = {}
        values = [self.encoded(value, known, sent) for value in (function, *arguments)]
        words = {name: self.encoded(value, known, sent) for name, value in keywords.items()}
        self.send({"do": [values, words]})
        while "do" in (answer := self.received()):
            self.send(self.answer(answer["do"]))
        try:
            for number, content in answer.get("changed", ()):
                _fill(sent[number], self._content(sent[number], content, sent))
            self.heard(answer)
            if "raises" in answer:
                return None, self.exception(answer["raises"], sent)
            return self.decoded(answer["is"], sent), None
        except Exception as fault:  # whatever the other process has sent
            raise Malformed(f"{type(fault).__name__}: {fault}") from None

    def heard(self, answer: dict[str, Any]) -> None:
        """Read further parts of an answer."""

    def answer(self, request: Any) -> dict[str, Any]:
        """Return the answer to {"do": request}."""
        received: list[Any] = []
        try:
            values, words = request
            function, *arguments = [self.decoded(value, received, new=True) for value in values]
            keywords = {name: self.decoded(value, received, new=True) for name, value in words.items()}
            before = [_flat(one) for one in received]
            known = {id(one): number for number, one in enumerate(received)}
            answer: dict[str, Any]
            try:
                result = self.perform(function, arguments, keywords)
                answer = {"is": self.encoded(result, known, built=isinstance(function, type))}
            except (Exception, SystemExit) as error:
                answer = {"raises": self._encoded_exception(error)}
            answer["changed"] = [
                [number, self._encoded_content(one, known, None)]
                for number, one in enumerate(received)
                if not _same(before[number], _flat(one))
            ]
        except Exception as error:
            return {"raises": self._encoded_exception(error)}
        return answer

    def perform(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        raise NotImplementedError

    def send(self, message: dict[str, Any]) -> None:
        left = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while left:
                left = left[os.write(self._to, left) :]
        except BrokenPipeError:
            raise Ended from None

    def received(self) -> dict[str, Any]:
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            if not (part := os.read(self._from, READ_BYTES)):
                raise Ended
            self._read += part
            if len(self._read) > MOST_BYTES:
                raise Malformed(f"a message of more than {MOST_BYTES} bytes")
        line = self._read[:end]
        del self._read[: end + 1]
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"{type(error).__name__}: {error}") from None
        if not isinstance(message, dict) or not {"do", "is", "raises"} & message.keys():
            raise Malformed("it is no message")
        return message

    # values

    def encoded(self, value: Any, known: dict[int, int], new: list[Any] | None = None, *, built: bool = False) -> Any:
        """Encode a value as JSON. `known`: the containers that the other side has, by id; with `new`, others are added
        to it.
        `built`: whether the value is a requested instance, which keeps its class."""
        if _is_json(value):
            return value
        if (kind := type(value)) is int:
            return ["int", hex(value)]  # Python limits the length of decimals
        if id(value) in known:
            return ["same", known[id(value)]]
        if (number := self.foreign(value)) is not None:
            return ["yours", number]
        if MUTABLE.get(kind.__name__) is kind:
            more = [getattr(value.default_factory, "__name__", "")] if kind is defaultdict else []
            if new is None:
                return [kind.__name__, self._encoded_content(value, known, new), *more]
            known[id(value)] = len(new)
            new.append(value)
            return [kind.__name__, self._encoded_content(value, known, new), *more]
        if FIXED.get(kind.__name__) is kind:
            return [kind.__name__, self._encoded_content(value, known, new)]
        if kind.__name__ in LIBRARY and LIBRARY[kind.__name__][0] == kind.__module__:
            parts = LIBRARY[kind.__name__][1](value)
            return ["made", kind.__name__, [self.encoded(part, known, new) for part in parts]]
        for name, single in SINGLE.items():
            if value is single:
                return ["single", name]
        if isinstance(value, type):
            return self.encoded_type(value)
        if isinstance(value, BaseException):
            return ["exception", *self._encoded_exception(value)]
        if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufcSU":
            if kind.__name__ != "ndarray":
                return self.encoded(value.item(), known, new)
            return ["array", value.dtype.str, value.shape, self.encoded(value.ravel().tolist(), {})]
        if not built and isinstance(value, PLAIN):
            return self._encoded_plain(value, known, new)
        return self.encoded_object(value)

    def foreign(self, value: Any) -> int | None:
        """Return the number of the object of the other process that a value represents."""
        return self._ids.get(id(value))

    def _encoded_plain(self, value: Any, known: dict[int, int], new: list[Any] | None) -> Any:
        """Encode an instance of a subclass as one of the class itself, and a named tuple with its names."""
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            content = [self.encoded(one, known, new) for one in tuple(value)]
            return ["named", type(value).__name__, list(value._fields), content]
        base = next(base for base in PLAIN if isinstance(value, base))
        return self.encoded(getattr(base, f"__{base.__name__}__", base)(value), known, new)  # str.__str__, or list

    def _encoded_content(self, value: Any, known: dict[int, int], new: list[Any] | None) -> Any:
        if isinstance(value, bytearray):
            return value.decode("latin-1")
        if isinstance(value, dict):
            return [[self.encoded(each, known, new) for each in pair] for pair in value.items()]
        return [each if _is_json(each) else self.encoded(each, known, new) for each in value]

    def encoded_object(self, value: Any) -> Any:
        """Encode an object that is not data."""
        kind = type(value).__name__
        return ["coroutine" if kind == "coroutine" else "theirs", self.number(value), kind]

    def encoded_type(self, kind: type[Any]) -> Any:
        """Encode a class as a builtin one, as an exception with its bases, or like any other object."""
        if TYPES.get(kind.__name__) is kind:
            return ["type", kind.__name__]
        if (number := self.foreign(kind)) is not None:
            return ["yours", number]
        if issubclass(kind, BaseException):
            bases = [self.encoded_type(base) for base in kind.__bases__ if issubclass(base, BaseException)]
            return ["class", self.number(kind), kind.__name__, bases, kind.__module__]
        return self.encoded_object(kind)

    def _encoded_exception(self, error: BaseException) -> list[Any]:
        """Encode an exception as its class, arguments, text and number."""
        try:
            arguments = [self.encoded(one, {}) for one in error.args]
        except Exception:
            arguments = [str(error)]
        return [self.encoded_type(type(error)), arguments, str(error), self.number(error)]

    def number(self, value: Any) -> int:
        """Return the number by which the other process knows an object."""
        if (number := self._numbers.get(id(value))) is None:
            number = self._numbers[id(value)] = len(self._exported)
            self._exported.append(value)
        return number

    def decoded(self, data: Any, known: list[Any], *, new: bool = False) -> Any:
        """Decode a value from JSON. `known`: the containers that have numbers; with `new`, others are added to it."""
        if type(data) in JSON:
            return data
        kind, content, *more = data
        if kind in MUTABLE:
            value = MUTABLE[kind]()
            if kind == "defaultdict":
                value.default_factory = FACTORIES.get(more[0])
            if new:
                known.append(value)
            _fill(value, self._content(value, content, known, new=new))
            return value
        if kind in FIXED:
            return FIXED[kind](self.decoded(each, known, new=new) for each in content)
        match kind:
            case "int":
                return int(content, 16)
            case "same":
                return known[content]
            case "yours":
                return self._exported[content]
            case "made":
                module, _, maker = LIBRARY[content]
                make = operator.attrgetter(maker)(import_module(module)) if isinstance(maker, str) else maker
                return self.record(make(*[self.decoded(part, known, new=new) for part in more[0]]))
            case "single":
                return SINGLE[content]
            case "type":
                return self.named_type(content)
            case "named":
                return self.record(_named(content, more[0])(*[self.decoded(each, known, new=new) for each in more[1]]))
            case "array":
                return _array(content, more[0], self.decoded(more[1], []))
            case "exception":
                return self.exception([content, *more], known)
            case "class" | "theirs" | "coroutine":
                return self.remote_object(kind, content, *more)
            case "imported":
                return self.imported(content, *more)
        raise Malformed(f"{kind!r:.40} is no kind of value")

    def _content(self, value: Any, content: Any, known: list[Any], *, new: bool = False) -> Any:
        if isinstance(value, bytearray):
            return content.encode("latin-1")
        if isinstance(value, dict):
            return [[self.decoded(each, known, new=new) for each in pair] for pair in content]
        return [each if type(each) in JSON else self.decoded(each, known, new=new) for each in content]

    def exception(self, data: Any, known: list[Any]) -> BaseException:
        kind, arguments, text, _number = data
        found = self.decoded(kind, known)
        exception_type = getattr(found, "__kind__", found)  # objects.Kind
        if not (isinstance(exception_type, type) and issubclass(exception_type, BaseException)):
            raise Malformed(f"{kind!r:.80} is no exception")
        try:
            return exception_type(*[self.decoded(one, known) for one in arguments])
        except Exception:  # the class needs other arguments
            return RuntimeError(f"{exception_type.__name__}: {text}")

    def named_type(self, name: str) -> Any:
        """Return a builtin class."""
        return TYPES[name]

    def record(self, value: Any) -> Any:
        """Return a value that may have named attributes."""
        return value

    def remote_object(self, kind: str, number: Any, *more: Any) -> Any:
        """Return the representation of an object of the other process, which is the same for the same number."""
        if type(number) is not int:
            raise Malformed(f"{number!r:.40} is no number of an object")
        if number not in self._proxies:
            proxy = self._proxies[number] = self.represent(kind, number, *more)
            self._ids[id(proxy)] = number
        return self._proxies[number]

    def represent(self, kind: str, number: int, *more: Any) -> Any:
        raise NotImplementedError

    def imported(self, module: str, name: str) -> Any:
        """Return an installed function, class or module that the other process names."""
        raise Malformed(f"{module}.{name} is not imported from the other process")


def _is_json(value: Any) -> bool:
    kind = type(value)
    return kind in JSON and (kind is not int or -LARGE <= value < LARGE)


def _fill(value: Any, content: Any) -> None:
    """Replace a container's content."""
    value.clear()
    if isinstance(value, dict):
        for key, each in content:
            value[key] = each
    elif isinstance(value, set):
        value.update(content)
    else:
        value.extend(content)


def _flat(value: Any) -> list[Any]:
    """Return a container's content, to compare with its later content."""
    if isinstance(value, dict):
        return [each for pair in value.items() for each in pair]
    return [bytes(value)] if isinstance(value, bytearray) else list(value)


def _same(one: list[Any], other: list[Any]) -> bool:
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(a is b or (type(a) is bytes and a == b) for a, b in pairs)


_named_tuples: dict[tuple[str, ...], Any] = {}


def _named(name: str, fields: list[str]) -> Any:
    """Return the class of named tuples with this name and these fields."""
    from collections import namedtuple

    key = (name, *fields)
    if key not in _named_tuples:
        _named_tuples[key] = namedtuple(name, fields)
    return _named_tuples[key]


def _array(kind: str, shape: list[int], content: list[Any]) -> Any:
    numpy: Any = sys.modules.get("numpy") or import_module("numpy")
    dtype = numpy.dtype(kind)
    if dtype.kind not in "biufcSU":
        raise Malformed(f"an array of {kind!r:.40}")
    return numpy.array(content, dtype).reshape(shape)

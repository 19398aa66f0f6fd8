"""A program as its tests see it, which run in another process.

The tests call the program's functions as if they were local: data is copied (wire.py) and compared in this process, by
builtin types. An instance of a class of the program is represented by a `Proxy`, which forwards operations, except
comparisons and calculations with the tests' data: the program would learn what is expected, and decide whether it is
met. A test that does so fails, whatever it catches.
"""

import re
import sys
import threading
import types
from typing import Any

from tasks.rewards.remote.wire import BINARY, COMPARISONS, OPERATIONS, Ended, Malformed, Peer, Remote

NAME = "tests"  # the tests' module
HIDDEN = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt)  # they would end a loop, or the tests
OPEN = OPERATIONS.keys() - {"delattr", "dir", "isinstance", "issubclass", "copy", "deepcopy", "hash", "format"}
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)
_IMPORTED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
SHOWN = (NAME, "_io", "unittest.mock")  # modules of the classes whose objects' attributes the program may see
# of a mock: what it has recorded, and what changes that. A program calls it, and does not write the record
_RECORD = {
    "called", "call_count", "call_args", "call_args_list", "method_calls", "mock_calls", "attach_mock",
    "configure_mock", "mock_add_spec", "reset_mock",
}  # fmt: skip
_WITH_DATA = {*COMPARISONS, *BINARY, *(f"r{name}" for name in BINARY), "contains"}
# methods by which builtin types compare; a program's answer to them is not used
COMPARE = {f"__{name}__" for name in _WITH_DATA} | {
    "startswith", "endswith", "issubset", "issuperset", "isdisjoint", "union", "intersection", "difference",
    "symmetric_difference",
}  # fmt: skip
# not `__array_interface__` and the like, by which a library reads this process's memory where it is told to
ATTRIBUTES = {f"__{name}__" for name in _WITH_DATA | OPERATIONS.keys()} | {
    f"__{name}__" for name in ("name", "qualname", "doc", "dict", "annotations", "wrapped", "members", "call", "init")
}
_CLASS = re.compile(r"(\w+\.)*[A-Z]\w*\(\)")  # a call of one, by its name


class Refused(BaseException):
    """A test cannot pass."""


class Tests(Peer):
    """The tests' end. `spoiled`: why the current test cannot pass. `why`: the first reason of this kind for which the
    program is not to blame."""

    def __init__(self, pipes: tuple[int, int]) -> None:
        super().__init__(pipes)
        self.spoiled = self.why = ""
        self.gone = self.asked = False
        self.space: dict[str, Any] = {}  # the tests' names, with those of the program that they use
        self.watched: list[str] = []
        self._lock = threading.RLock()
        self._label = "solution"  # what is being asked for, in the tests' words
        self._labels: dict[int, str] = {}  # id of a proxy -> its label
        self._constructed: set[int] = set()  # ids of proxies of objects that a class was called for
        self._returned: set[int] = set()  # ids of those that came in another way
        self._coroutines: list[Any] = []  # their proxies, kept since their ids have a meaning
        self.module = self.remote_object("theirs", 0, "module")

    def spoil(self, reason: str) -> Refused:
        self.spoiled = self.spoiled or reason
        return Refused(reason)

    def refused(self, reason: str) -> Refused:
        """Of what a test does that is decided by nobody but the program."""
        self.why = self.why or reason
        return self.spoil(reason)

    def label(self, proxy: Any) -> str:
        return self._labels.get(id(proxy), "an object of the program")

    def ask(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        with self._lock:
            before, self._label = self._label, self._of(function, arguments)
            self.asked = True
            try:
                if self.gone:
                    raise Ended
                value, raised = self.exchange(function, arguments, keywords)
            except Ended:
                self.gone = True
                raise self.spoil("the program has ended") from None
            except (Malformed, MemoryError, RecursionError) as error:
                raise self.spoil(f"what came of the program cannot be read: {error}") from None
            finally:
                self._label = before
            if isinstance(raised, HIDDEN) and not (isinstance(raised, StopIteration) and function == "next"):
                raise RuntimeError(f"the program raised {type(raised).__name__}")
            if raised is not None:
                raise raised
            return value

    def _of(self, function: Any, arguments: tuple[Any, ...]) -> str:
        if not isinstance(function, str):
            return f"{self.label(function)}()"
        owner = self.label(arguments[0]) if arguments else ""
        return f"{owner}.{arguments[1]}" if function == "getattr" else f"{owner}[]"

    def heard(self, answer: dict[str, Any]) -> None:
        if printed := answer.get("out"):
            sys.stdout.write(str(printed))
        asked = self._label
        for name, value in answer.get("names", {}).items():
            if name in self.watched:
                self._label = name
                self.space[name] = self.decoded(value, [])
        self._label = asked

    def compares(self, owner: Any) -> bool:
        """Whether an object's methods may not be asked to compare it with data."""
        return owner is not self.module and not (id(owner) in self._constructed and id(owner) not in self._returned)

    # what the program is given, and may ask

    def encoded_object(self, value: Any) -> Any:
        if isinstance(value, _IMPORTED) and (place := _importable(value)):
            return ["imported", *place]
        case = sys.modules["unittest"].TestCase if "unittest" in sys.modules else ()
        given = callable(value) or hasattr(type(value), "__next__") or type(value).__module__ in SHOWN
        if isinstance(value, case) or not given:
            raise self.refused(
                f"a test gives an object of {type(value).__name__} to the program: data, functions and objects of the "
                "tests' own classes can be given"
            )
        return super().encoded_object(value)

    def perform(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """What the program asks for: a call of a function that it was given, or an operation on an object."""
        if function == "input":
            return input(*arguments)
        try:
            if isinstance(function, str):
                return self._operation(function, *arguments)
            if id(function) not in self._numbers:
                raise TypeError("it was not given")
            return function(*arguments, **keywords)
        except AssertionError:  # of the tests: the program must neither catch it nor read its text
            self.spoil("AssertionError")
            raise AssertionError from None

    def _operation(self, name: str, owner: Any, *others: Any) -> Any:
        attribute = str(others[0]) if name in ("getattr", "setattr") else ""
        shown = type(owner).__module__ in SHOWN and not isinstance(owner, _FUNCTIONS) and attribute[:1] != "_"
        if attribute in ("__name__", "__qualname__", "__doc__") and name == "getattr":
            shown = True
        if name not in OPEN or id(owner) not in self._numbers or not (shown or name in ("bool", "iter", "next")):
            raise AttributeError(f"{attribute or name} is not shown to the program")
        if type(owner).__module__ == "unittest.mock" and attribute in _RECORD:
            raise AttributeError(f"{attribute} is not shown to the program")
        if name == "setattr":
            checked = callable(getattr(type(owner), attribute, None))
            before = getattr(owner, attribute, None)  # an object of the tests' may be asked what the program did
            if checked or (isinstance(others[1], Proxy) and type(before).__module__ in SHOWN):
                raise AttributeError(f"{attribute} cannot be replaced by the program")
        return OPERATIONS[name](owner, *others)

    # what comes of the program

    def remote_object(self, kind: str, number: Any, *more: Any) -> Any:
        proxy = super().remote_object(kind, number, *more)
        (self._constructed if _CLASS.fullmatch(self._label) else self._returned).add(id(proxy))
        return proxy

    def represent(self, kind: str, number: int, *more: Any) -> Any:
        if kind == "class":
            name, bases = more[0], tuple(self.decoded(base, []) for base in more[1])
            if not all(isinstance(base, type) and issubclass(base, BaseException) for base in bases):
                raise Malformed(f"{name!r:.40} is no class of exceptions")
            methods = {"__str__": _text_of, "__getattr__": _attribute_of}
            return type(str(name), bases, methods)
        proxy = Proxy()
        self._labels[id(proxy)] = self._label
        if kind != "coroutine":
            return proxy
        self._ids[id(proxy)] = number
        self._coroutines.append(proxy)
        return self._awaited(proxy)

    async def _awaited(self, coroutine: Any) -> Any:
        return self.ask("await", coroutine)

    def exception(self, data: Any, known: list[Any]) -> BaseException:
        error = super().exception(data, known)
        if type(error).__str__ is _text_of:  # of a class of the program's
            error.__dict__.update(_text=str(data[2]), _remote=self.remote_object("theirs", data[3], "exception"))
        return error


def _text_of(error: BaseException) -> str:
    return str(error.__dict__.get("_text", ""))


def _attribute_of(error: BaseException, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(error.__dict__["_remote"], name)


class Proxy(Remote):
    """An object of the program's."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ATTRIBUTES:
            raise AttributeError(name)
        value = peer().ask("getattr", self, name)
        if name not in COMPARE or not isinstance(value, Proxy) or not peer().compares(self):
            return value

        def of_data(*arguments: Any, **keywords: Any) -> Any:
            if any(not isinstance(each, Proxy) for each in (*arguments, *keywords.values())):
                raise _with_data(self, f"{name}()")
            return value(*arguments, **keywords)

        return of_data

    def __contains__(self, item: Any) -> Any:
        if isinstance(item, Proxy):
            return peer().ask("contains", self, item)
        items = iter(self)  # type: ignore[call-overload] # which wire.py gives it
        return any(each is item or each == item for each in items)

    def __exit__(self, kind: Any, error: Any, _trace: Any) -> None:
        if isinstance(error, AssertionError | Refused):  # which tells what is expected
            kind = error = None
        if peer().ask("exit", self, kind, error, None) and kind:
            raise peer().refused(f"{peer().label(self)} suppresses {kind.__name__}, which would end the test")

    def __mro_entries__(self, bases: Any) -> Any:
        raise peer().refused(f"a test derives a class from {peer().label(self)}, which is in another process")


def _compared(name: str, reflected: bool = False) -> None:
    def compared(self: Proxy, other: Any) -> Any:
        if isinstance(other, Proxy):
            operation = {"and": "and_", "or": "or_"}.get(name, name)
            return peer().ask(operation, *((other, self) if reflected else (self, other)))
        if other is None and name in ("eq", "ne"):
            return name == "ne"
        raise _with_data(self, name)

    setattr(Proxy, f"__{'r' if reflected else ''}{name}__", compared)


for _name in COMPARISONS:
    _compared(_name)
for _name in BINARY:
    _compared(_name)
    _compared(_name, reflected=True)
Proxy.__hash__ = Remote.__hash__  # type: ignore[method-assign]


def _with_data(proxy: Proxy, operation: str) -> Refused:
    return peer().refused(
        f"{peer().label(proxy)} is an object of the program's, not data: a test cannot compare it with data or "
        f"calculate with it ({operation}), but use its attributes and what its methods return"
    )


def peer() -> Tests:
    return Remote.__peer__  # type: ignore[return-value]


def _importable(value: Any) -> tuple[str, str] | None:
    """Module and name of what the program can import too: a function, a class or a module that the tests import."""
    if isinstance(value, types.ModuleType):
        return (value.__name__, "") if sys.modules.get(value.__name__) is value else None
    module, name = getattr(value, "__module__", None) or "builtins", value.__qualname__
    target: Any = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    return (module, name) if target is value and module != NAME else None

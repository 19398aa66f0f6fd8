"""The tests' end of the connection: send requests to the program's process, and answer the program's requests for the
tests' functions and objects."""

import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from baton.tasks.rewards.remote.objects import (
    CATCHING,
    Kind,
    Proxy,
    Reference,
    Refused,
    as_member,
    proxy_class,
    unwrapped,
)
from baton.tasks.rewards.remote.wire import IN_PLACE, OPERATIONS, PROBED, Ended, Malformed, Peer

MOST_REACHED = 100  # objects that are reached from an object, and read with it
MOST_RETURNED = 256  # objects that came back whose attributes are read before others are constructed
MOST_OTHERS = 8  # objects that two equal objects are compared with
NAME = "tests"  # the tests' module
HIDDEN = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt)  # would end a loop or the tests
# Operations that may change their arguments, as calls may
CHANGING = ("setattr", "delattr", "setitem", "delitem", "next", "enter", "exit", "aenter", "aexit", "await", *IN_PLACE)
ENDS = {"next": StopIteration, "anext": StopAsyncIteration}  # exceptions by which these operations end
OPEN = OPERATIONS.keys() - {"delattr", "dir", "isinstance", "issubclass", "copy", "deepcopy", "hash", "format"}
MOST_METHODS = (1 << len(PROBED)) - 1
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)
_IMPORTED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
SHOWN = (NAME, "_io", "unittest.mock")  # modules of the classes whose objects' attributes the program may see
# The record of a mock, and the methods that change it: a program calls a mock, but must not change its record
_RECORD = {
    "called", "call_count", "call_args", "call_args_list", "method_calls", "mock_calls", "attach_mock",
    "configure_mock", "mock_add_spec", "reset_mock",
}  # fmt: skip


class Tests(Peer):
    """The tests' end of the connection. `spoiled`: why the current test cannot pass. `why`: the first such reason for
    which the program is not to blame."""

    def __init__(self, pipes: tuple[int, int]) -> None:
        super().__init__(pipes)
        self.spoiled = self.why = ""
        self.gone = self.asked = False
        self.space: dict[str, Any] = {}  # the tests' names, with those of the program that they use
        self.watched: list[str] = []
        self.classes: dict[str, set[str]] = {}  # names of the classes under test -> used attributes of their objects
        self.of_data: frozenset[str] = frozenset()  # names of the attributes of all types of data
        self.exempt: set[int] = set()  # numbers of objects that the tests read from a class under test
        self._kin: dict[int, set[str]] = {}  # numbers of the classes under test -> used attributes of their objects
        self._seen: set[int] = set()  # numbers of known objects
        self._made: dict[int, tuple[Proxy, str, Callable[..., Any]]] = {}  # objects that the tests constructed
        self._differ: set[int] = set()  # numbers of classes whose objects are not all equal
        self._claimed_equal: set[int] = set()  # numbers of classes that called two objects equal in a test
        self._touching = True  # whether the request may change the objects that are sent
        self._returned: dict[int, Proxy] = {}  # the last objects of classes under test that came back
        self._states: dict[int, tuple[int, Any]] = {}  # their attributes, and the number of changes before
        self._changes = 0  # number of requests that may change objects
        self._fresh = False  # whether the last object had no number before
        self._lock = threading.RLock()
        self._label = "solution"  # description of the current request for messages
        self.module = Proxy(Reference(0, "solution"))
        self.module.__ref__.made = True

    def spoil(self, reason: str) -> Refused:
        self.spoiled = self.spoiled or reason
        return Refused(reason)

    def refused(self, reason: str) -> Refused:
        """Return the error for an operation of a test whose result only the program decides."""
        self.why = self.why or reason
        return self.spoil(reason)

    def with_data(self, proxy: Proxy, operation: str) -> Refused:
        return self.refused(
            f"{proxy.__ref__.label} is an object of the program's, not data: a test cannot compare it with data or "
            f"calculate data from it ({operation}), but use its attributes"
        )

    def returned(self, proxy: Proxy, what: str) -> Refused:
        return self.refused(self.what_returned(proxy, what))

    def what_returned(self, proxy: Proxy, what: str) -> str:
        return (
            f"{proxy.__ref__.label} is an object of the program's that came back from a call where a right program may "
            f"have data, and {what}: only methods of objects that a test constructs are believed (docs/sandbox.md)"
        )

    def is_kin(self, proxy: Proxy) -> bool:
        """Return whether an object is of a class under test, according to the program."""
        return any(number in self._kin for number in proxy.__ref__.classes)

    def uses(self, proxy: Proxy, name: str) -> bool:
        """Return whether the tests use an attribute of objects of its class that they construct."""
        return any(name in self._kin.get(number, ()) for number in proxy.__ref__.classes)

    def named(self, name: str, value: Any) -> Any:
        """Return the program's value of a name."""
        if isinstance(value, Proxy):
            reference = value.__ref__
            reference.label = name
            reference.made = reference.is_class and name in self.classes
            if reference.made:
                self._kin[reference.number] = self.classes[name]
        return value

    def construct(self, kind: Proxy, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Construct an object for a test. It must be a new object, or the one that equal arguments gave, since the
        program could have prepared an earlier object to pass."""
        self.read_attributes()
        changes = self._changes
        value = self.ask(kind, *arguments, **keywords)
        self._changes = changes
        if not isinstance(value, Proxy):
            return value
        given = self._given([*arguments, keywords])
        number = value.__ref__.number
        if number in self._made and self._made[number][1] == given:
            return self._made[number][0]
        if (arguments or keywords) and (number in self._made or not (self._fresh or number in self.exempt)):
            raise self.refused(f"{value.__ref__.label} is an object that the program had before")
        value.__ref__.made = True
        self._returned.pop(number, None)

        def construct_again(change: Callable[[Any], Any] = lambda one: one) -> Any:
            values = {name: change(one) for name, one in keywords.items()}
            return self.ask(kind, *[change(one) for one in arguments], **values)

        self._made[number] = value, given, construct_again
        return value

    def holds_reversed(self, name: str, one: Proxy, other: Proxy) -> bool:
        """Return whether a comparison also holds if its objects are constructed in the other order."""
        later_first = sorted((one, other), key=lambda each: -each.__ref__.number)
        objects = [self._made[each.__ref__.number][2]() for each in later_first]
        return bool(self.ask(name, *(objects if later_first[0] is one else reversed(objects))))

    def is_as_made(self, proxy: Proxy) -> bool:
        """Return whether an object is unchanged since the tests constructed it."""
        return proxy.__ref__.number in self._made and not proxy.__ref__.touched

    def _given(self, values: list[Any]) -> str:
        """Return arguments as text."""
        known: dict[int, int] = {}
        sent: list[Any] = []
        return str([self.encoded(each, known, sent) for each in values])

    def read_attributes(self) -> None:
        """Read the attributes of objects that came back before the tests construct others, since an object could take
        on the attributes of the object that it is then compared with."""
        for number in [*self._returned]:
            if self._states.get(number, (-1, None))[0] != self._changes:
                reached = [self._returned[number]]
                for proxy in reached:  # the list grows
                    state = self._states[proxy.__ref__.number] = self._changes, self.ask("state", proxy)
                    reached += [each for each in _inside(state[1][1]) if each.__ref__.number not in self._states]
                    del reached[MOST_REACHED:]

    def state(self, proxy: Proxy) -> Any:
        """Return whether an object's class compares its objects, and the object's attributes."""
        changes, state = self._states.get(proxy.__ref__.number, (-1, None))
        return state if changes == self._changes else self.ask("state", proxy)

    def others(self, one: Proxy, other: Proxy) -> list[Any]:
        """Return objects of the class of both, from other arguments than the second: objects that the tests
        constructed, or one that equals the first before it changed."""
        first, second = (self._made.get(each.__ref__.number) for each in (one, other))
        kind = other.__ref__.classes[:1]
        made = [
            value
            for number, (value, given, _) in self._made.items()
            if value.__ref__.classes[:1] == kind and number not in (one.__ref__.number, other.__ref__.number)
            if second is None or given != second[1]
        ]
        if not made and first and second and first[1] != second[1]:
            made = [first[2]()]
        if len(made) < 2 and second and not first and second[1] != self._given([{}]):
            try:  # the only object may be from equal arguments
                made += [second[2](change) for change in (_larger, _smaller)]
            except Exception:  # there is no such object
                pass
            made = [each for each in made if isinstance(each, Proxy)]
        return made[-MOST_OTHERS:]

    def ask(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        with self._lock:
            before, self._label = self._label, self._call_label(function, arguments)
            touching, self._touching = self._touching, not isinstance(function, str) or function in CHANGING
            self._changes += self._touching
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
                self._label, self._touching = before, touching
            ends = ENDS.get(function, ()) if isinstance(function, str) else ()
            if isinstance(raised, HIDDEN) and not isinstance(raised, ends):
                raise RuntimeError(f"the program raised {type(raised).__name__}")
            if raised is not None:
                raise raised
            return value

    def _call_label(self, function: Any, arguments: tuple[Any, ...]) -> str:
        if not isinstance(function, str):
            return f"{function.__ref__.label if isinstance(function, Proxy) else 'a function'}()"
        owner = arguments[0].__ref__.label if arguments and isinstance(arguments[0], Proxy) else ""
        return f"{owner}.{arguments[1]}" if function == "getattr" else f"{owner}[]"

    def heard(self, answer: dict[str, Any]) -> None:
        if printed := answer.get("out"):
            sys.stdout.write(str(printed))
        for name, value in answer.get("names", {}).items():
            if name in self.watched:
                self.space[name] = self.named(name, self.decoded(value, []))

    def foreign(self, value: Any) -> int | None:
        if not isinstance(value, Proxy):
            return super().foreign(value)
        value.__ref__.touched |= self._touching
        return value.__ref__.number

    def considered_equal(self, one: Proxy, other: Proxy) -> bool:
        """Return whether the class of two objects under test considers them equal, which counts only if others are
        not."""
        equal = bool(self.ask("eq", one, other))
        if bool(self.ask("eq", other, one)) is not equal:
            raise self.refused(f"{one.__ref__.label} is equal to another object one way, and not the other way")
        numbers = {each.__ref__.number for each in (one, other)}
        rest = [value for number, (value, *_) in self._made.items() if number not in numbers][-MOST_OTHERS:]
        kind = one.__ref__.classes[:1]
        rest = [each for each in rest if each.__ref__.classes[:1] == kind]
        if not equal or any(not self.ask("eq", one, each) for each in rest):
            self._differ.update(kind)
        self._claimed_equal.update(kind if equal else ())
        return equal

    def finish(self) -> None:
        """Check at the end of a test that no class considers all of its objects equal."""
        if self._claimed_equal - self._differ:
            self.refused("an object of the program's is equal to all others of its class that the tests construct")
        self._claimed_equal.clear()

    # what the program gets, and its requests

    def encoded_object(self, value: Any) -> Any:
        if type(value) is Kind:
            return self.encoded(value.__kind__, {})
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
        """Perform a request of the program: a call of a function that it was given, or an operation on an object."""
        if function == "input":
            return input(*arguments)
        try:
            if isinstance(function, str):
                return self._operation(function, *arguments)
            if id(function) not in self._numbers:
                raise TypeError("it was not given")
            return function(*arguments, **keywords)
        except AssertionError:  # the tests' own, which the program must neither catch nor read
            self.spoil("AssertionError")
            raise AssertionError from None

    def _operation(self, name: str, owner: Any, *others: Any) -> Any:
        attribute = str(others[0]) if name in ("getattr", "setattr") else ""
        shown = type(owner).__module__ in SHOWN and not isinstance(owner, _FUNCTIONS) and attribute[:1] != "_"
        if attribute in ("__name__", "__qualname__", "__doc__") and name == "getattr":
            shown = True
        if name not in OPEN or id(owner) not in self._numbers or not (shown or name in ("bool", "iter", "next")):
            raise AttributeError(f"{attribute or name} is not shown to the program")
        mocked = type(owner).__module__ == "unittest.mock"
        if mocked and attribute in _RECORD | {each for each in dir(owner) if each.startswith("await")}:
            raise AttributeError(f"{attribute} is not shown to the program")
        if name == "setattr":
            before = getattr(owner, attribute, None)  # the tests may ask an object of theirs what the program did
            checked = callable(getattr(type(owner), attribute, None)) or getattr(before, "mock_calls", None)
            if checked or (isinstance(others[1], Proxy) and type(before).__module__ in SHOWN):
                raise AttributeError(f"{attribute} cannot be replaced by the program")
        return OPERATIONS[name](owner, *others)

    # what comes from the program

    def remote_object(self, kind: str, number: Any, *more: Any) -> Any:
        if kind != "theirs":
            return super().remote_object(kind, number, *more)
        _, is_class, classes, methods = more
        if type(classes) is not list or not all(type(each) is int for each in (number, methods, *classes)):
            raise Malformed(f"{number!r:.40} is no number of an object")
        self._fresh = number not in self._seen
        self._seen.add(number)
        value = proxy_class(methods & MOST_METHODS)(Reference(number, self._label, is_class is True, classes))
        if is_class is not True and self.is_kin(value) and number not in self._made:
            self._returned.pop(number, None)
            self._returned[number] = value
            if len(self._returned) > MOST_RETURNED:
                self._states.pop(old := next(iter(self._returned)), None)
                del self._returned[old]
        return value

    def named_type(self, name: str) -> Any:
        kind = super().named_type(name)
        raised = issubclass(kind, BaseException) and not issubclass(kind, BaseExceptionGroup) and kind not in CATCHING
        return kind if raised else Kind(kind)  # a test may expect it to be raised

    def record(self, value: Any) -> Any:
        """Treat a value's attributes like those of an object that came back: a class among them is not a method, and a
        truth value must not have the name of an attribute of data."""
        is_tuple = hasattr(value, "_fields")
        attributes = value._asdict() if is_tuple else getattr(value, "__dict__", {})
        for name, each in attributes.items():
            if isinstance(each, Proxy):
                each.__ref__.member = name
            elif type(each) is bool and name in self.of_data:
                raise self.refused(f"{self._label} has an attribute {name}, which data has too, that is true or false")
        members = {name: as_member(each, name) for name, each in attributes.items()}
        if all(members[name] is each for name, each in attributes.items()):
            return value
        return type(value)(*members.values()) if is_tuple else type(value)(**members)

    def represent(self, kind: str, number: int, *more: Any) -> Any:
        if kind == "coroutine":
            return self._awaited(Proxy(Reference(number, self._label)))
        name, bases = more[0], _bases([unwrapped(self.decoded(base, [])) for base in more[1]])
        if known := _library_exception(more[2], name):
            return type(str(name), (known,), {"__str__": _text_of, "__getattr__": _attribute_of, "__init__": _nothing})
        return type(str(name), bases, {"__str__": _text_of, "__getattr__": _attribute_of})

    async def _awaited(self, coroutine: Any) -> Any:
        return self.ask("await", coroutine)

    def exception(self, data: Any, known: list[Any]) -> BaseException:
        error = super().exception(data, known)
        if type(error).__str__ is _text_of:  # an exception of the program's class
            error.__dict__.update(
                _text=str(data[2]), _remote=self.remote_object("theirs", data[3], "exception", False, [], 0)
            )
        return error


def _larger(value: Any) -> Any:
    """Return another, larger value of the same kind."""
    if isinstance(value, str):
        return "".join(str((int(each) + 1) % 10) if each in "0123456789" else each for each in value) + "x" * (
            not any(each in "0123456789" for each in value)
        )
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)([*map(_larger, value)] or [1])
    if type(value) is bool:
        return not value
    return value + 1 if type(value) in (int, float) else 1 if value is None else value


def _smaller(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_smaller, value))
    return value - 1 if type(value) in (int, float) else _larger(_larger(value))


def _inside(value: Any) -> list[Proxy]:
    """Return the objects in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [each for one in value for each in _inside(one)]
    return [value] if isinstance(value, Proxy) else []


def _bases(bases: list[Any]) -> tuple[type[BaseException], ...]:
    """Return the bases of a class of exceptions. Of several of Python's own kinds, only the first is kept, since the
    class could otherwise be whatever a test expects."""
    taken: list[type[BaseException]] = []
    for base in bases:
        if not (isinstance(base, type) and issubclass(base, BaseException)):
            raise Malformed(f"{base!r:.40} is no class of exceptions")
        own = [{kind for kind in each.__mro__ if kind.__module__ == "builtins"} for each in (*taken, base)]
        if any(each == set.union(*own) for each in own):
            taken.append(base)
    return tuple(taken)


def _library_exception(module: Any, name: Any) -> type[Exception] | None:
    """Return a class of exceptions of Python's library, if the tests' process has imported it."""
    if str(module).partition(".")[0] not in sys.stdlib_module_names - {"builtins", "unittest"}:
        return None
    kind = getattr(sys.modules.get(str(module)), str(name), None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: the `__init__` of an exception that consists of its arguments alone."""


def _known(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an exception of the program's class. An exception that the tests construct is
    constructed in the program too."""
    if "_remote" not in error.__dict__:
        error.__dict__.update(Proxy.__tests__.ask(type(error), *error.args).__dict__)
    return error.__dict__


def _text_of(error: BaseException) -> str:
    return str(_known(error)["_text"])


def _attribute_of(error: BaseException, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(_known(error)["_remote"], name)


def _importable(value: Any) -> tuple[str, str] | None:
    """Return the module and name of a function, class or module that the tests import, and the program can import
    too."""
    if isinstance(value, types.ModuleType):
        return (value.__name__, "") if sys.modules.get(value.__name__) is value else None
    module, name = getattr(value, "__module__", None) or "builtins", value.__qualname__
    target: Any = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    return (module, name) if target is value and module != NAME else None

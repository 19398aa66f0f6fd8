"""Objects of the program as its tests see them, and the operations that tests may use on them.

Data is copied (wire.py) and compared by Python's own types. Everything else is represented by a `Proxy`, of two kinds:

- objects under test: the program's classes (evidence.py), and the objects that the tests construct with them. Their
  methods are tested, and are called like the program's functions.
- objects that come back from a call. Such an object may stand where a right program has data, so no answer of its
  methods is believed: the tests can call it as a function, iterate over it, read its attributes, and pass it back. If
  its class is under test, they can also use methods that no data has, to get other objects, or, without arguments, data
  except truth values.

Two objects of which one came back are equal if their classes and their attributes are equal, as compared here.
"""

import builtins
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

from baton.tasks.rewards.remote.wire import BINARY, IN_PLACE, PROBED

ORDER = ("lt", "le", "gt", "ge")
UNARY = (
    "neg", "pos", "invert", "abs", "round", "int", "float", "complex", "index", "bytes", "trunc", "floor", "ceil",
)  # fmt: skip
# Methods of generators and of functions with a cache: calling them continues a call of the program's function
_FUNCTION_METHODS = {
    "send",
    "throw",
    "close",
    "asend",
    "athrow",
    "aclose",
    "cache_info",
    "cache_clear",
    "cache_parameters",
}
# Without `__array_interface__` and the like, by which a library reads this process's memory at a given address
_ATTRIBUTES = {f"__{name}__" for name in ("name", "qualname", "doc", "dict", "annotations", "wrapped", "members")}
# Classes of a test's own assertion, which a test would catch if the program raised it
CATCHING = (BaseException, Exception, AssertionError)
_TOGETHER = {"enter": ("enter", "exit"), "aenter": ("aenter", "aexit")}
_MOST_COMPARED = 10_000  # objects that are compared when two are


class Refused(BaseException):
    """Raised if a test cannot pass."""


class NoLength(TypeError):
    """Raised if a length is refused; a TypeError, since `list` and others can do without the length that they ask
    for."""


class Reference:
    """The object that a proxy represents, and how the tests got it."""

    __slots__ = (
        "chained", "class_read", "classes", "is_class", "label", "made", "member", "mixed", "number", "owner_is_kin",
        "touched", "used",
    )  # fmt: skip

    def __init__(self, number: int, label: str, is_class: bool = False, classes: Sequence[int] = ()) -> None:
        self.number, self.label, self.is_class = number, label, is_class
        self.classes = classes  # numbers of the program's classes of which it is an instance, its own first
        self.made = False  # whether it is under test
        self.class_read = -1  # number of the class under test from which the tests read it or its origin
        self.touched = False  # whether a method of it was used since it was constructed
        self.member = ""  # name of the attribute, if it was read from an object that came back
        self.owner_is_kin = False  # whether that object is of a class under test
        self.used = False  # whether the tests use that attribute on objects that they construct
        self.mixed = False  # whether it was calculated with an object that came back, so that its data is not believed
        self.chained = False  # whether a call with arguments returned it, so that its existence proves nothing


def _ordered(name: str) -> Callable[[Any, Any], Any]:
    def compared(self: Any, other: Any) -> Any:
        if not isinstance(other, Proxy):
            raise self.__tests__.with_data(self, name)
        for each in (self, other):
            if not each.__ref__.made:
                raise self.__tests__.returned(each, f"it is compared ({name})")
        holds = bool(self.__tests__.ask(name, self, other))
        if holds and self.__tests__.ask(name, other, self) and not (name in ("le", "ge") and self == other):
            raise self.__tests__.returned(self, f"it is compared ({name}) with the same result both ways")
        tests = self.__tests__
        if all(map(tests.is_as_made, (self, other))) and tests.holds_reversed(name, self, other) is not holds:
            raise self.__tests__.returned(self, f"it is compared ({name}) by which of both was constructed first")
        return holds

    return compared


def _unary(name: str) -> Callable[..., Any]:
    def applied(self: Any, *arguments: Any) -> Any:
        if not self.__ref__.made and not self.__tests__.is_kin(self):
            raise self.__tests__.returned(self, f"{name} is asked for")
        value = self.__tests__.ask(name, self, *arguments)
        if self.__ref__.mixed:
            if not isinstance(value, Proxy):
                raise self.__tests__.with_data(self, name)
            value.__ref__.mixed = True
        return value

    return applied


def _binary(name: str, *, reflected: bool) -> Callable[[Any, Any], Any]:
    operation = {"and": "and_", "or": "or_"}.get(name, name)

    def calculated(self: Any, other: Any) -> Any:
        tests, both = self.__tests__, isinstance(other, Proxy)
        if not both and not (self.__ref__.made or tests.is_kin(self)):
            raise tests.with_data(self, name)
        value = tests.ask(operation, *((other, self) if reflected else (self, other)))
        if isinstance(value, Proxy):
            value.__ref__.mixed = _is_mixed(name, self, other)
        if isinstance(value, Proxy) or (both and self.__ref__.made and other.__ref__.made):
            return value
        raise tests.with_data(self, name)

    return calculated


class Kind:
    """A class of Python that the program returns. It can be compared, called like a function, and used in `isinstance`,
    but has no attributes and no items, since it may stand where a right program has data: `set.union` of two sets is an
    answer, and `list["a"]` is true."""

    __slots__ = ("__kind__", "__member__")
    __kind__: type[Any]

    def __init__(self, kind: type[Any], member: str = "") -> None:
        self.__kind__, self.__member__ = kind, member  # `member`: the attribute of an object that came back

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self.__member__:
            raise self._refused(f"is called as the method {self.__member__} of an object that came back")
        return self.__kind__(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            return getattr(self.__kind__, name)
        if name == "__bases__":  # `issubclass` requests this attribute
            return (self.__kind__,)
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refused(f"is asked for its attribute {name}")

    def __getitem__(self, key: Any) -> Any:
        raise self._refused("is asked for an item")

    def _refused(self, what: str) -> Refused:
        tests: Any = Proxy.__tests__
        refused: Refused = tests.refused(f"the class {self.__kind__.__name__}, which came of the program, {what}")
        return refused

    def __eq__(self, other: object) -> bool:
        return self.__kind__ is unwrapped(other)

    def __hash__(self) -> int:
        return hash(self.__kind__)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self.__kind__)

    def __subclasscheck__(self, subclass: Any) -> bool:
        if self.__kind__ in CATCHING:
            raise self._refused("is asked whether it catches an error")
        return issubclass(unwrapped(subclass), self.__kind__)

    def __mro_entries__(self, bases: Any) -> Any:
        return (self.__kind__,)

    def __repr__(self) -> str:
        return repr(self.__kind__)


def unwrapped(value: Any) -> Any:
    """Return the class that a Kind stands for, or another value unchanged."""
    return value.__kind__ if type(value) is Kind else value


def as_member(value: Any, name: str) -> Any:
    """Return an attribute's value, in which a class is not a method."""
    kind = unwrapped(value)
    return Kind(kind, name) if isinstance(kind, type) else value


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    def changed(self: Any, other: Any) -> Any:
        tests = self.__tests__
        if not isinstance(other, Proxy) and not (self.__ref__.made or tests.is_kin(self)):
            raise tests.with_data(self, name)
        value = tests.ask(name, self, other)
        if not isinstance(value, Proxy):
            raise tests.with_data(self, name)
        value.__ref__.mixed = self.__ref__.mixed = _is_mixed(name.removeprefix("i"), self, other)
        return self if same(value, self) else value

    return changed


def _is_mixed(name: str, one: Any, other: Any) -> bool:
    """Return whether the program has seen data that a test may expect of the first object: `abs(vector.length() -
    5)`."""
    if isinstance(other, Proxy):
        return bool(one.__ref__.mixed or other.__ref__.mixed)
    return bool(one.__ref__.mixed or not one.__ref__.made or name == "sub")


Operators: Any = type(  # created at once, since each method that is set later costs as much as a class
    "Operators",
    (),
    {"__slots__": ()}
    | {f"__{name}__": _ordered(name) for name in ORDER}
    | {f"__{name}__": _unary(name) for name in UNARY}
    | {f"__{name}__": _binary(name, reflected=False) for name in BINARY}
    | {f"__r{name}__": _binary(name, reflected=True) for name in BINARY}
    | {f"__{name}__": _in_place(name) for name in IN_PLACE},
)


class Proxy(Operators):  # type: ignore[misc]
    """An object of the program."""

    __slots__ = ("__ref__",)
    __ref__: Reference
    __tests__: ClassVar[Any]  # tests_side.Tests, which imports this module

    def __init__(self, reference: Reference) -> None:
        object.__setattr__(self, "__ref__", reference)

    # attributes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _ATTRIBUTES:
            raise AttributeError(name)
        if name == "__dict__" and not self.__ref__.made:
            raise self.__tests__.returned(self, "its attributes are asked for")
        reference, tests = self.__ref__, self.__tests__
        value = tests.ask("getattr", self, name)
        if isinstance(value, Proxy):
            reference.touched = True
            if reference.made and reference.is_class:
                tests.exempt.add(value.__ref__.number)
                self._read(value)
            elif not self._as_made(name):
                value.__ref__.member, value.__ref__.owner_is_kin = name, tests.is_kin(self)
                value.__ref__.used = tests.uses(self, name)
        elif type(value) is bool and not reference.made and (not tests.is_kin(self) or name in tests.of_data):
            raise tests.returned(self, f"its attribute {name} is true or false")
        return value if self._as_made(name) else as_member(value, name)

    def _read(self, value: "Proxy") -> None:
        """Put an object of a class under test under test if it was read from the class (`Color.RED`), or if an
        attribute of the class returned it (`Date.parse`)."""
        value.__ref__.class_read = self.__ref__.number if self.__ref__.is_class else self.__ref__.class_read
        value.__ref__.made = value.__ref__.class_read in value.__ref__.classes and not value.__ref__.is_class

    def __setattr__(self, name: str, value: Any) -> None:
        self.__tests__.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__tests__.ask("delattr", self, name)

    def __dir__(self) -> Any:
        return self.__tests__.ask("dir", self)

    # calls

    def _called(self, arguments: tuple[Any, ...], keywords: dict[str, Any], *, discarded: bool) -> Any:
        """Call a method of an object that came back."""
        reference, tests = self.__ref__, self.__tests__
        name = reference.member
        of_function = name in _FUNCTION_METHODS
        own = of_function or reference.used
        if not own and (not reference.owner_is_kin or name in tests.of_data):
            raise tests.returned(self, "it is called")
        value = tests.ask(self, *arguments, **keywords)
        if own:
            decides = not discarded and type(value) is bool and not reference.made
            if decides and (name in tests.of_data or (of_function and not reference.used)):
                raise tests.returned(self, f"its answer {value!r:.40} decides")
            return value
        if isinstance(value, Proxy):
            value.__ref__.chained = bool(arguments or keywords)
        elif not discarded and (arguments or keywords or value is None or type(value) is bool):
            raise tests.returned(self, f"its answer {value!r:.40} decides")
        return value

    # comparisons

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, Proxy):
            return _equal(self, other)
        if other is None:
            return same(self, None)
        raise self.__tests__.with_data(self, "eq")

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int(self.__tests__.ask("hash", self))

    def __bool__(self) -> bool:
        reference, tests = self.__ref__, self.__tests__
        if reference.chained or (reference.member in tests.of_data and not reference.used):
            raise tests.returned(self, "its truth decides")
        return bool(tests.ask("bool", self)) if reference.made else True

    def __contains__(self, item: Any) -> bool:
        if self.__ref__.made and self._as_made("__contains__"):
            return bool(self.__tests__.ask("contains", self, item))
        return any(each is item or each == item for each in iter(self))

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Proxy) and not instance.__ref__.is_class and self._is_class_of(instance)

    def __subclasscheck__(self, subclass: Any) -> bool:
        return isinstance(subclass, Proxy) and subclass.__ref__.is_class and self._is_class_of(subclass)

    def _is_class_of(self, other: "Proxy") -> bool:
        if not self.__ref__.is_class:
            raise TypeError(f"{self.__ref__.label} is not a class")
        return self.__ref__.number in other.__ref__.classes

    # contents

    def _as_made(self, name: str) -> bool:
        """Return whether an attribute or method is that of an object under test, not that of data in its place."""
        reference, tests = self.__ref__, self.__tests__
        if reference.made and (reference.class_read < 0 or reference.is_class or name not in tests.of_data):
            return True
        return bool(tests.uses(self, name))

    def __getitem__(self, key: Any) -> Any:
        if not self._as_made("__getitem__"):
            raise self.__tests__.returned(self, "an item is asked for")
        return self.__tests__.ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__tests__.ask("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self.__tests__.ask("delitem", self, key)

    def __str__(self) -> str:
        return str(self.__tests__.ask("str", self))

    def __repr__(self) -> str:
        return str(self.__tests__.ask("repr", self))

    def __format__(self, format_spec: str) -> str:
        made = self.__ref__.made
        return str(self.__tests__.ask("format", self, format_spec)) if made else format(str(self), format_spec)

    def __copy__(self) -> Any:
        return self._copied("copy")

    def __deepcopy__(self, memo: Any) -> Any:
        return self._copied("deepcopy")

    def _copied(self, how: str) -> Any:
        value = self.__tests__.ask(how, self)
        if isinstance(value, Proxy):
            value.__ref__.made, value.__ref__.touched = self.__ref__.made, True
        return value

    def _leave(self, how: str, kind: Any, error: Any) -> None:
        if isinstance(error, AssertionError | Refused):  # the message has the expected value
            kind = error = None
        if self.__tests__.ask(how, self, kind, error, None) and kind:
            raise self.__tests__.refused(f"{self.__ref__.label} suppresses {kind.__name__}, which would end the test")

    def __mro_entries__(self, bases: Any) -> Any:
        raise self.__tests__.refused(f"a test derives a class from {self.__ref__.label}, which is in another process")


class _Optional(Proxy):
    """Methods that a proxy has only if its object has them, since tests use `callable` and `isinstance(…,
    Iterator)`."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        reference, tests = self.__ref__, self.__tests__
        if reference.member:
            return self._called(arguments, keywords, discarded=False)
        if reference.made and reference.is_class:
            return tests.construct(self, arguments, keywords)
        if reference.class_read >= 0:
            tests.read_attributes()
        value = tests.ask(self, *arguments, **keywords)
        if reference.class_read >= 0 and isinstance(value, Proxy):
            self._read(value)
        return value

    def __iter__(self) -> Any:
        return self.__tests__.ask("iter", self)

    def __next__(self) -> Any:
        return self.__tests__.ask("next", self)

    def __len__(self) -> int:
        if not self._as_made("__len__"):
            raise NoLength(self.__tests__.what_returned(self, "its length is asked for"))
        return int(self.__tests__.ask("len", self))

    def __reversed__(self) -> Any:
        if not self._as_made("__reversed__"):
            raise self.__tests__.returned(self, "it is reversed")
        return self.__tests__.ask("reversed", self)

    def __enter__(self) -> Any:
        value = self.__tests__.ask("enter", self)
        return self if same(value, self) else value

    def __exit__(self, kind: Any, error: Any, _trace: Any) -> None:
        self._leave("exit", kind, error)

    async def __aenter__(self) -> Any:
        value = self.__tests__.ask("aenter", self)
        return self if same(value, self) else value

    async def __aexit__(self, kind: Any, error: Any, _trace: Any) -> None:
        self._leave("aexit", kind, error)

    def __await__(self) -> Any:
        return self.__tests__.ask("await", self)
        yield

    def __aiter__(self) -> Any:
        return self.__tests__.ask("aiter", self)

    async def __anext__(self) -> Any:
        return self.__tests__.ask("anext", self)


@cache
def proxy_class(methods: int) -> type[Proxy]:
    """Return the class of proxies with these methods. `methods`: one bit for each of wire.PROBED."""
    names = [name for bit, name in enumerate(PROBED) if methods >> bit & 1]
    chosen = [f"__{name}__" for each in names for name in _TOGETHER.get(each, (each,))]
    own = {"__slots__": (), "__doc__": vars(Proxy)["__doc__"]}
    return type("Proxy", (Proxy,), own | {name: vars(_Optional)[name] for name in chosen})


def same(one: Any, other: Any) -> bool:
    """Return `one is other`, where an object of the program may have several proxies."""
    if isinstance(one, Proxy) and isinstance(other, Proxy):
        return one.__ref__.number == other.__ref__.number
    for each in (one, other):
        if isinstance(each, Proxy) and each.__ref__.chained:
            raise each.__tests__.returned(each, "that it exists decides")
    return unwrapped(one) is unwrapped(other)


def discard(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """Call a function whose result is not used."""
    if isinstance(function, Proxy) and function.__ref__.member:
        return function._called(arguments, keywords, discarded=True)
    return function(*arguments, **keywords)


def _equal(one: Proxy, other: Proxy) -> bool:
    """Compare objects by their attributes. A class may also consider objects equal that were constructed with other
    attributes, if it does not consider all of its objects equal."""
    if same(one, other):
        return True
    tests, alike = one.__tests__, _alike(one, other, set(), first=True)
    others = tests.others(one, other) if alike else []
    constructed = all(each.__ref__.made and not each.__ref__.touched for each in (one, other))
    if others and all(_alike(one, each, set()) for each in others):
        if constructed:  # such as `Point(1) == Point(1, 0)`, which counts if others are not equal
            return bool(tests.considered_equal(one, other))
        raise tests.refused(f"{one.__ref__.label}: all objects of its class have equal attributes, whatever made them")
    if alike or not constructed:
        return alike
    return bool(tests.considered_equal(one, other))


def _alike(one: Any, other: Any, seen: set[tuple[int, int]], *, first: bool = False) -> bool:
    if isinstance(one, Proxy) and isinstance(other, Proxy):
        pair = one.__ref__.number, other.__ref__.number
        if pair[0] == pair[1] or pair in seen:
            return True
        if not one.__ref__.classes or one.__ref__.classes[0] != other.__ref__.classes[0] or len(seen) > _MOST_COMPARED:
            return False
        seen.add(pair)
        (compares, state), (_, others) = (one.__tests__.state(each) for each in (one, other))
        return bool((compares or not first) and state and _alike(state, others, seen))
    if type(one) is not type(other):
        return not isinstance(one, Proxy) and not isinstance(other, Proxy) and bool(one == other)
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(_alike(a, b, seen) for a, b in zip(one, other, strict=True))
    if type(one) is dict:
        return one.keys() == other.keys() and all(_alike(value, other[key], seen) for key, value in one.items())
    return bool(one == other)


Proxy.__doc__ = property(lambda self: self.__tests__.ask("getattr", self, "__doc__"))  # type: ignore[assignment]
Proxy.__annotations__ = property(lambda self: self.__getattr__("__annotations__"))  # type: ignore[assignment]


def install(unittest: Any = None) -> None:
    """Make `same` and `discard` available to rewritten tests and to unittest."""
    vars(builtins).update(__same__=same, __discard__=discard)
    if unittest is None:
        return
    for name, right, alone in (
        ("assertIs", True, False), ("assertIsNot", False, False), ("assertIsNone", True, True),
        ("assertIsNotNone", False, True),
    ):  # fmt: skip
        setattr(unittest.TestCase, name, _assertion(right, alone))


def _assertion(right: bool, alone: bool) -> Callable[..., None]:
    def asserted(case: Any, one: Any, other: Any = None, msg: Any = None) -> None:
        if alone:
            other, msg = None, other or msg
        if same(one, other) is not right:
            raise case.failureException(msg or f"{one!r} is {'not ' if right else ''}{other!r}")

    return asserted

"""Run a row's tests on a program in another process, and report which of them pass.

This process runs in the sandbox as the program's checker (infra/sandbox/runner.py). Standard input has {"tests": one
text or a list of texts, "types": the names of each type's attributes}; the result is {"outcomes": "101", one digit per
test, "why": the reason why a test failed although the program may be right, or ""}. In a list, each text is one test;
in a single text, each unittest case or pytest function is, or else all of the text.
"""

import ast
import builtins
import json
import os
import symtable
import sys
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from baton.tasks.rewards.remote.evidence import Evidence, rewritten
from baton.tasks.rewards.remote.objects import NoLength, Proxy, install
from baton.tasks.rewards.remote.tests_side import NAME, Tests

# Functions for comparisons that tests use without importing them
JUDGES = {"isclose": ("math", "isclose"), "deepcopy": ("copy", "deepcopy")}
_NUMBER_BUILTINS = (
    "abs",
    "float",
    "int",
    "max",
    "min",
    "pow",
    "round",
    "set",
    "str",
    "sum",
    "tuple",
    "list",
    "frozenset",
)
_CALCULATION = (
    ast.Expression, ast.Constant, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.BinOp, ast.UnaryOp, ast.BoolOp,
    ast.Compare, ast.IfExp, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Call, ast.keyword, ast.Name, ast.expr_context,
    ast.Subscript, ast.Slice,
)  # fmt: skip
FILE = "tests.py"
LONGEST_REASON = 500  # characters
# Modules that tests use although only the program imports them; the tests get Python's
MODULES = {
    name: name
    for name in (
        "asyncio", "bisect", "cmath", "collections", "contextlib", "copy", "datetime", "decimal", "fractions",
        "functools", "heapq", "io", "itertools", "json", "math", "operator", "os", "pytest", "random", "re",
        "statistics", "string", "sys", "time", "typing", "unittest",
    )
} | {"np": "numpy", "numpy": "numpy", "pd": "pandas"}  # fmt: skip


class Solution(types.ModuleType):
    """The program's module, as tests import it."""

    __tests__: Tests

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [each for each in self.__tests__.watched if each in self.__tests__.space]
        if name.startswith("__"):
            raise AttributeError(name)
        asked = self.__tests__.asked
        value = self.__tests__.named(name, getattr(self.__tests__.module, name))
        if isinstance(value, Proxy):  # importing a function or a class does not test it
            self.__tests__.asked = asked
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__tests__.module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__tests__.module, name)


def outcomes_of(tests: Tests, given: str | list[str], types_of_data: list[frozenset[str]]) -> list[bool]:
    """Return the outcomes; tests.why has the reason."""
    sources = [given] if isinstance(given, str) else given
    failed = [False] * len(sources)
    try:
        trees = [ast.parse(source, FILE) for source in sources]
        names, modules = names_of_program(sources, trees)
    except (SyntaxError, ValueError, RecursionError) as error:
        tests.why = f"the tests cannot be read: {type(error).__name__}: {error}"
        return failed
    tests.classes = Evidence(trees, types_of_data).classes
    tests.of_data = frozenset().union(*types_of_data)
    unittest = any("unittest" in source for source in sources)
    install(import_module("unittest") if unittest else None)
    module = sys.modules[NAME] = types.ModuleType(NAME)
    Solution.__tests__, sys.modules["solution"] = tests, Solution("solution")
    tests.space, tests.watched = vars(module), names
    if not _passes(tests, lambda: tests.ask("watch", *names)):  # the program has run
        return failed
    for name in modules:
        _passes(tests, lambda name=name: tests.space.update({name: import_module(MODULES[name])}))  # type: ignore[misc]
    for name, (place, member) in JUDGES.items():
        if name not in names:
            tests.space[name] = getattr(import_module(place), member)
    for name in set(names) & set(dir(builtins)) - tests.space.keys():
        tests.space[name] = _undefined(name)
    constants = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    _guard(tests, {each for each in constants if isinstance(each, str)}, "\n".join(sources))
    tests.asked = False
    nodes = (node for tree in trees for node in ast.walk(tree))
    functions = any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) for node in nodes)
    outcomes = [list(_outcomes(tests, module, source, tree)) for source, tree in zip(sources, trees, strict=True)]
    found = [tests.space[name] for name in names if name in tests.space]
    if not tests.asked and not any(not functions or not isinstance(value, Proxy) for value in found):
        tests.why = tests.why or "the tests use nothing of the program"
        return failed
    return outcomes[0] if isinstance(given, str) else [bool(each) and all(each) for each in outcomes]


def _guard(tests: Tests, own: set[str], text: str) -> None:
    """Prevent the tests from running text of the program: `eval` only calculates with literals, and `pickle` reads no
    classes."""

    def source(given: Any) -> str:
        if isinstance(given, types.CodeType) or str(given) in own:
            return ""
        return str(given)

    def evaluate(given: Any, space: Any = None, names: Any = None) -> Any:
        frame = sys._getframe(1)
        space, local = (frame.f_globals, frame.f_locals) if space is None else (space, space)
        if (expression := source(given)) and not _is_calculation(expression, named := tests.watched):
            raise tests.refused(
                f"eval is given {expression!r:.80}: only calculations, with calls of {named}, are evaluated"
            )
        return eval(given, space, local if names is None else names)

    def execute(given: Any, space: Any = None, names: Any = None) -> None:
        frame = sys._getframe(1)
        space, local = (frame.f_globals, frame.f_locals) if space is None else (space, space)
        if statements := source(given):
            raise tests.refused(f"exec is given {statements!r:.80}, which is no text of the tests")
        exec(given, space, local if names is None else names)

    def compiled(given: Any, *more: Any, **named: Any) -> Any:
        if not isinstance(given, ast.AST) and not source(given):
            return compile(given, *more, **named)
        raise tests.refused(f"compile is given {given!r:.80}, which is no text of the tests")

    for name, function in (("eval", evaluate), ("exec", execute), ("compile", compiled)):
        if name in text and name not in tests.watched:
            tests.space[name] = function
    if "pickle" in text:
        import pickle
        from io import BytesIO

        class Unpickler(pickle._Unpickler):  # type: ignore[name-defined,misc]
            def find_class(self, module: str, name: str) -> Any:
                raise tests.refused(f"pickle is given the class {module}.{name}")

        vars(pickle).update(
            Unpickler=Unpickler,
            load=lambda file, **_: Unpickler(file).load(),
            loads=lambda data, **_: Unpickler(BytesIO(data)).load(),
        )


def _is_calculation(text: str, named: list[str]) -> bool:
    """Return whether an expression consists of literals, operators and calls of the program's names."""
    try:
        tree = ast.parse(text.strip(), FILE, "eval")
    except (SyntaxError, ValueError, RecursionError):
        return True  # the text is not evaluated
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not (id(node) in calls and node.id in (*named, *_NUMBER_BUILTINS)):
            return False
        if not isinstance(node, _CALCULATION):
            return False
    return True


def _passes(tests: Tests, action: Callable[[], Any]) -> bool:
    """Return whether an action raises nothing, and does nothing that only the program could decide."""
    tests.spoiled = ""
    try:
        action()
        tests.finish()
    except BaseException as error:  # a test may raise anything
        if isinstance(error, NoLength):
            tests.why = tests.why or str(error)
        return False
    return not tests.spoiled


def _outcomes(tests: Tests, module: types.ModuleType, source: str, tree: ast.Module) -> Iterator[bool]:
    space = vars(module)
    before, ran = dict(space), set[types.CodeType]()
    blocks = _main_blocks(tree)
    asks = any(isinstance(node, ast.Constant) and node.value == "__main__" for node in ast.walk(tree))
    space["__name__"] = "__main__" if asks else NAME  # a module that asks for it in another way is run as a script
    code = compile(rewritten(tree), FILE, "exec")
    done = _passes(tests, lambda: _execute(code, space, ran))
    cases = _unittest_outcomes(tests, module) if done and "unittest" in source and "TestCase" in source else []
    own = {name: value for name, value in space.items() if value is not before.get(name)}
    calls = list(_pytest_calls(own, {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}, ran))
    yield from cases
    for call in calls:
        yield done and _passes(tests, call)
    if not cases and not calls:
        for block in blocks if done else ():  # the module is a script
            done = done and _passes(tests, lambda block=block: exec(compile(block, FILE, "exec"), space))  # type: ignore[misc]
        yield done


def _main_blocks(tree: ast.Module) -> list[ast.Module]:
    """Move the blocks that a module runs only as the main module out of it, and return them."""
    blocks, rest = [], []
    for node in tree.body:
        match node:
            case ast.If(
                ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")])
                | ast.Compare(ast.Constant("__main__"), [ast.Eq()], [ast.Name("__name__")]),
                body,
                other,
            ):
                blocks.append(rewritten(ast.Module(body, [])))
                rest += other
            case _:
                rest.append(node)
    tree.body = rest
    return blocks


def _execute(code: types.CodeType, space: dict[str, Any], ran: set[types.CodeType]) -> None:
    """Run a module, and note the functions that it calls if any could be a test."""

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_globals is space:
            ran.add(frame.f_code)

    if any(name.lower().startswith("test") for name in code.co_names):
        sys.setprofile(note)
    try:
        exec(code, space)
    finally:
        sys.setprofile(None)


def _unittest_outcomes(tests: Tests, module: types.ModuleType) -> list[bool]:
    import unittest

    class Outcome(unittest.TestResult):
        passed = 0
        broken = False  # a set-up or tear-down of a class or of the module has failed

        def startTest(self, test: Any) -> None:
            self.broken = self.broken or bool(tests.spoiled)
            super().startTest(test)

        def stopTest(self, test: Any) -> None:
            tests.spoiled = ""
            super().stopTest(test)

        def addError(self, test: Any, error: Any) -> None:
            self.broken = self.broken or not isinstance(test, unittest.TestCase)
            super().addError(test, error)

        def addSuccess(self, test: Any) -> None:
            tests.finish()
            self.passed += not tests.spoiled

        def addExpectedFailure(self, test: Any, error: Any) -> None:
            tests.finish()
            self.passed += not tests.spoiled

    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    count, outcome = suite.countTestCases(), Outcome()
    if not _passes(tests, lambda: suite.run(outcome)) or outcome.broken:
        return [False] * count
    return [True] * outcome.passed + [False] * (count - outcome.passed)


def names_of_program(sources: list[str], trees: list[ast.Module]) -> tuple[list[str], list[str]]:
    """Return the names of the program that tests use, and those of MODULES: the names that neither a test nor the tests
    before it define or import. A builtin name is the program's only if there is no other, and the program is not
    imported."""
    free: set[str] = set()
    bound: set[str] = set()
    for source in sources:
        used = set()
        bound |= _star_imports(source)
        tables = [top := symtable.symtable(source, FILE, "exec")]
        for table in tables:
            tables += table.get_children()
            for symbol in table.get_symbols():
                if (table is top or symbol.is_declared_global()) and (symbol.is_assigned() or symbol.is_imported()):
                    bound.add(symbol.get_name())
                if symbol.is_referenced() and (table is top or symbol.is_global()):
                    used.add(symbol.get_name())
        free |= used - bound
    nodes = [node for tree in trees for node in ast.walk(tree)]
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    alone = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in owners}
    modules = (free & MODULES.keys()) - alone
    python = free & set(dir(builtins))
    others = free - python - modules
    if others - JUDGES.keys():
        others -= JUDGES.keys()
    imported = any("solution" in source for source in sources)
    return sorted(others or (python if len(python) == 1 and not imported else ())), sorted(modules)


def _star_imports(source: str) -> set[str]:
    """Return the names that `from … import *` imports from Python's library."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source, FILE)):
        match node:
            case ast.ImportFrom(str(place), [ast.alias("*")]) if place.partition(".")[0] in sys.stdlib_module_names:
                module = import_module(place)
                names |= set(getattr(module, "__all__", None) or (each for each in dir(module) if each[0] != "_"))
    return names


def _pytest_calls(space: dict[str, Any], named: set[str], ran: set[types.CodeType]) -> Iterator[Callable[[], Any]]:
    """Yield calls of the functions and methods that pytest would call and that have not run. A function that another
    function of the tests calls with arguments is not included."""
    for name, value in space.items():
        if name.startswith("test") and isinstance(value, types.FunctionType) and value.__code__ not in ran:
            if value.__code__.co_argcount <= len(value.__defaults__ or ()) or name not in named:
                yield lambda value=value: _call(value)  # type: ignore[misc]
        elif name.startswith("Test") and isinstance(value, type) and value.__module__ == NAME:
            yield from _methods(value, ran)


def _methods(kind: type[Any], ran: set[types.CodeType]) -> Iterator[Callable[[], Any]]:
    if "unittest" in sys.modules and issubclass(kind, sys.modules["unittest"].TestCase):
        return
    members = {name: value for each in reversed(kind.__mro__) for name, value in vars(each).items()}
    for name, value in members.items():
        if isinstance(value, type) and name.startswith("Test") and value.__module__ == NAME:
            yield from _methods(value, ran)
        function = getattr(value, "__func__", value)
        if name.startswith("test") and isinstance(function, types.FunctionType) and function.__code__ not in ran:
            yield lambda name=name: _call_method(kind, name)  # type: ignore[misc]


def _call_method(kind: type[Any], name: str) -> None:
    """Run a test of a class, with the methods that pytest calls before and after it."""
    case = kind()
    for before in ("setup_class", "setup_method"):
        _call_hook(case, before, name)
    try:
        _call(getattr(case, name))
    finally:
        for after in ("teardown_method", "teardown_class"):
            _call_hook(case, after, name)


def _call_hook(case: Any, hook: str, name: str) -> None:
    if function := getattr(case, hook, None):
        code = getattr(function, "__func__", function).__code__
        if code.co_argcount > 1 and hook.endswith("_method"):
            function(getattr(case, name))
        elif isinstance(vars(type(case)).get(hook), types.FunctionType) and hook.endswith("_class"):
            function.__func__(type(case))
        else:
            function()


def _call(test: Callable[[], Any]) -> None:
    result = test()
    if isinstance(result, types.CoroutineType):
        import_module("asyncio").run(result)
    elif result is False or isinstance(result, types.GeneratorType | types.AsyncGeneratorType):
        raise AssertionError(f"a test returns {result!r}")


def _undefined(name: str) -> Callable[..., Any]:
    def undefined(*_: Any, **__: Any) -> Any:
        raise NameError(f"the program does not define {name}")

    return undefined


def main(pipes: tuple[int, int]) -> bool:
    """Run the tests of standard input. Return whether the program has ended."""
    task = json.loads(sys.stdin.buffer.read())
    result = os.dup(1)
    os.dup2(2, 1)  # keeps the tests' output out of the result
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0)  # noqa: SIM115
    tests = Proxy.__tests__ = Tests(pipes)
    outcomes = outcomes_of(tests, task["tests"], list(map(frozenset, task["types"])))
    digits = "".join(str(int(outcome)) for outcome in outcomes)
    os.write(result, json.dumps({"outcomes": digits, "why": tests.why[:LONGEST_REASON]}).encode())
    return tests.gone


if __name__ == "__main__":
    gone = main(pipes)  # type: ignore[name-defined] # noqa: F821 - given by infra/sandbox/runner.py

"""Parse a recipe's text: YAML 1.2, a superset of JSON.

Faults that YAML parsers silently accept are reported here: duplicate keys, `024` (20 in YAML 1.1, 24 in 1.2), tags such
as `!!python/object`. Size, depth and the number of values are bounded; aliases count as often as they are expanded.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from baton.tasks.core.spec import Problem
from baton.workflows.checks.table import problems_of_rest
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.beside import from_here
from baton.workflows.recipe.error import RecipeError, first_of_each
from baton.workflows.recipe.smoke import smoke
from baton.workflows.recipe.source import Source

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

LARGEST = 2**20  # bytes
DEEPEST = 32  # levels of nesting
MOST_VALUES = 20_000
TEXT = ("str", "timestamp", "value")  # tags of plain text in YAML 1.2; 1.1 has dates, and =
SUFFIXES = (".yaml", ".yml", ".json")

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,9})?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_AROUND = re.compile(r"\A\s+|\s+\Z")
_AMBIGUOUS = "ambiguous: write a number in decimal digits without leading zeros, or a quoted string"

R = TypeVar("R", bound=Recipe)


def load(
    source: str | Path,
    validate: Callable[[Any], R],
    name: str = "recipe",
    check: Callable[[R], R] | None = None,
) -> R:
    """Read a recipe from a file, with the changes of its `Source`, or from text that begins with `{`. `name`: the
    option or variable that named the source. `check`: the function that looks things up, see workflows/checks/. Raises
    RecipeError with every problem of the text, of the fields and of the checks that their problems do not prevent."""
    inline = isinstance(source, str) and source.lstrip().startswith("{")
    file = None if inline else Source.parse(str(source))
    try:
        read = _Reader(_text_of(file.path) if file else str(source))
        for field_path, value in file.sets if file else ():
            read.replace(field_path, value)
    except _Unreadable as error:
        raise RecipeError([Problem(name, str(source), str(error))]) from error
    try:
        recipe = validate(read.content)
    except RecipeError as error:
        more = problems_of_rest(error) if check else []
        raise RecipeError(
            first_of_each(read.problems, error.problems, more), error.recipe, error.wrong, read.lines
        ) from error
    if file:
        recipe, misplaced = from_here(recipe, file.path.parent)
        read.problems += misplaced
        recipe = smoke(recipe) if file.smoke else recipe
    try:
        recipe = check(recipe) if check else recipe
    except RecipeError as error:
        raise RecipeError(first_of_each(read.problems, error.problems), recipe, lines=read.lines) from error
    if read.problems:
        raise RecipeError(read.problems, recipe, lines=read.lines)
    return recipe


class _Unreadable(Exception):
    """The text has no value to validate."""


def _text_of(path: Path) -> str:
    """A file's text. Raises _Unreadable."""
    try:
        if not path.exists():
            raise _Unreadable("an existing YAML or JSON file")
        if not path.is_file():
            raise _Unreadable(f"a YAML or JSON file; this is a {'folder' if path.is_dir() else 'device or a pipe'}")
        if path.suffix.lower() not in SUFFIXES:
            raise _Unreadable(f"a file whose name ends in {', '.join(SUFFIXES)}: recipes are YAML or JSON")
        with path.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        raise _Unreadable(f"an existing YAML or JSON file: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(content) > LARGEST:  # possibly cut in the middle of a character
            return content.decode("latin-1")
        raise _Unreadable(f"text in UTF-8; byte {error.start} is not: {error.reason}") from error


@dataclass
class _Reader:
    """Parse a text into a value, its problems, and the line numbers of its fields. Raises _Unreadable."""

    text: str
    content: Any = None
    problems: list[Problem] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)  # by field path
    _values: int = 0
    _reported: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        from ruamel.yaml import YAML  # imported late to keep --help fast
        from ruamel.yaml.composer import Composer, MaxDepthExceededError
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        count = self._count

        class Counting(Composer):  # type: ignore[misc]
            def compose_node(self, parent: Any, index: Any) -> Any:
                count()
                return super().compose_node(parent, index)

        if len(self.text.encode("utf-8", "surrogatepass")) > LARGEST:
            raise _Unreadable(f"at most {LARGEST:,} bytes")
        yaml = YAML(typ="safe", pure=True)
        yaml.Composer, yaml.max_depth = Counting, DEEPEST
        yaml.composer.warn_double_anchors = False
        text = self.text
        if text.lstrip().startswith("{"):  # JSON allows tabs around the object, where ruamel.yaml does not
            text = _AROUND.sub(lambda match: match[0].replace("\t", " "), text)
        try:
            node = yaml.compose(text)
        except MaxDepthExceededError as error:
            raise _too_deep() from error
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
            why = ": ".join(filter(None, (error.context, error.problem)))
            raise _Unreadable(f"YAML or JSON: {where}{why}") from error
        except YAMLError as error:
            raise _Unreadable(f"YAML or JSON: {error}") from error
        except (ValueError, OverflowError) as error:  # raised by chr()
            raise _Unreadable("YAML or JSON: an escape beyond Unicode's last character, \\U0010FFFF") from error
        self._values = 0
        self.content = None if node is None else self._value(node, (), 0)

    def replace(self, path: str, text: str) -> None:
        """Replace the value at a path, such as post_training.0.sft.steps, by that of a YAML text. Mappings on the way
        that are missing are added. Raises _Unreadable."""
        value = _Reader(text).content
        *parents, last = path.split(".")
        place: Any = self.content
        for number, part in enumerate([*parents, last]):
            at = ".".join([*parents, last][:number])
            if isinstance(place, list):
                if not part.isdecimal() or int(part) >= len(place):
                    raise _Unreadable(f"--set {path}: {at} is a list of {len(place)}: a number below that, not {part}")
                key: Any = int(part)
            elif isinstance(place, dict):
                key = part
            else:
                raise _Unreadable(f"--set {path}: {at or 'the recipe'} has no fields; it is {place!r:.60}")
            if number == len(parents):
                place[key] = value
            else:
                if isinstance(place, dict) and place.get(key) is None:
                    place[key] = {}
                place = place[key]
        self.lines = {name: line for name, line in self.lines.items() if not f"{name}.".startswith(f"{path}.")}

    def _count(self) -> None:
        self._values += 1
        if self._values > MOST_VALUES:
            raise _Unreadable(f"at most {MOST_VALUES:,} values, with aliases expanded")

    def _value(self, node: "Node", path: tuple[str, ...], depth: int) -> Any:
        """A node's value; an alias is the same node again."""
        from ruamel.yaml.nodes import MappingNode, ScalarNode

        self._count()
        if depth > DEEPEST:
            raise _too_deep()
        self.lines.setdefault(".".join(path), node.start_mark.line + 1)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        kind = "map" if isinstance(node, MappingNode) else "seq"
        if _tag(node) != kind:
            self._report(path, f"!{_tag(node)}", f"a plain {kind}: no tags")
        if isinstance(node, MappingNode):
            return self._mapping(node, path, depth)
        return [self._value(item, (*path, str(index)), depth + 1) for index, item in enumerate(node.value)]

    def _mapping(self, node: "MappingNode", path: tuple[str, ...], depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        names: set[str] = set()
        for key, value in node.value:
            line, tag = key.start_mark.line + 1, _tag(key)
            name = self._text(key.value, path) if tag in TEXT else str(key.value)[:60]
            if name in names:
                self._report((*path, name), "(twice)", f"is repeated on line {line}; remove one of the two")
                continue
            names.add(name)
            if tag == "merge":  # not in YAML 1.2, but the main use of anchors
                content = self._value(value, path, depth + 1)
                for part in reversed(content if isinstance(content, list) else [content]):
                    if isinstance(part, dict):
                        merged |= part
                    else:
                        self._report((*path, "<<"), part, "an alias of a mapping, or a list of them")
                continue
            self.lines.setdefault(".".join((*path, name)), line)
            if tag not in TEXT:
                self._report((*path, name), tag, "a field's name is a string")
                continue
            mapping[name] = self._value(value, (*path, name), depth + 1)
        return merged | mapping

    def _scalar(self, node: "ScalarNode", path: tuple[str, ...]) -> Any:
        text, tag = node.value, _tag(node)
        if tag in TEXT:
            return self._text(text, path)
        if tag == "null" and text in ("", "~", "null", "Null", "NULL"):
            return None
        if tag == "bool" and text in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return text[0] in "tT"
        if tag == "int" and _INTEGER.fullmatch(text) and len(text) <= 20 and -(2**63) <= int(text) < 2**63:
            return int(text)
        if tag == "float" and (_FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text)):
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        allowed = {
            "int": "a 64-bit number" if _INTEGER.fullmatch(text) else _AMBIGUOUS,
            "float": _AMBIGUOUS,
            "bool": "true or false",
        }
        self._report(path, text, allowed.get(tag, f"a plain value, without the tag !{tag}"))
        return None

    def _text(self, text: str, path: tuple[str, ...]) -> str:
        """Join surrogate pairs: JSON escapes a character beyond 16 bits as two halves."""
        try:
            joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            joined = "\0"
        if "\0" not in joined:
            return joined
        self._report(path, text, "text without NUL characters or unpaired surrogates")
        return ""

    def _report(self, path: tuple[str, ...], value: Any, allowed: str) -> None:
        key = (".".join(path) or "recipe", allowed)
        if key not in self._reported:  # an alias repeats it
            self._reported.add(key)
            self.problems.append(Problem(key[0], value, allowed))


def _tag(node: "Node") -> str:
    """The short form of a node's tag: `int` for tag:yaml.org,2002:int."""
    return str(node.tag).removeprefix("tag:yaml.org,2002:")


def _too_deep() -> _Unreadable:
    return _Unreadable(f"at most {DEEPEST} levels of nesting, and no alias inside its own anchor")

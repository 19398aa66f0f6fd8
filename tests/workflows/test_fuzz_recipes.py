"""Randomly broken recipes. Each is planned, or refused within seconds with a message and exit code 2.

Half of them are shipped recipes with damaged text, a quarter have replaced fields, and a quarter have sections
generated from the schema: steps in lists, placements, layouts, with fields missing, at their bounds or of the wrong
type. BATON_FUZZ sets the number of recipes of the long form.
"""

import copy
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from baton.workflows.checks.table import checked
from baton.workflows.continuous_training.recipe import ContinuousRecipe, recipe_of
from baton.workflows.plan.command import examined_recipe
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError
from baton.workflows.recipe.text import load

ROOT = Path(__file__).parents[2]
RECIPES = [path.read_text() for path in sorted((ROOT / "workflows" / "recipes").glob("*.yaml"))]
LONGEST_S = 5.0
PIECES = [
    "&a ", "*a", "<<: *a\n", "!!python/object:os.system ", "!x ", "---\n", "...\n", "%YAML 1.1\n", "\t", "\r\n", "\0", "\ufeff",
    "\udcff", "\x1b[31m", "'", '"', "[", "]", "{", "}", ": ", "- ", "? ", "|\n", ">\n", "#", "024", "1:20", "on", "yes", "~", ".nan",
    "-.inf", "1e999", "9" * 5000, "-1", "true", "[" * 300, "{a: " * 300, "x" * 5000, '"\\ud800"', '"\\0"', "2024-01-01", "0x1f", "=", "😀",
    '"\\UFFFFFFFF"', '"\\U00110000"', '"\\x"', "%TAG ! tag:x,2000:\n", "!<tag:yaml.org,2002:int> ", "!!set ", "\u2028", "{\ta: 1}", "'a\tb'", "<<: [*a]\n",
]  # fmt: skip
ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "latin-1", "cp1252", "shift-jis", "utf-7"]
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 255, 4096, 10**6, 2**31, 2**53, 2**63 - 1, -(2**63), 0.5, -0.5, 1e-300, 1e300,
    float("inf"), float("nan"), "", "x", "on", "/", "~", "~nobody/x", "/no/such", "x" * 5000, "a\0b", "\udcff", "*", "[", "**/*",
    "s3://bucket/x", "https://me:pw@host/x", "hf/name", [], [1], ["x"], [[]], [None], {}, {"kind": "files"}, {"kind": "x"},
    {"a": 1}, {1: 2}, [{}], "H100", "H100:8", "fp8", "qwen3_moe", "WSD", "export X_TOKEN=y",
]  # fmt: skip


def broken_text(chance: random.Random) -> bytes:
    """Return a shipped recipe's damaged text, or sometimes only noise."""
    if chance.random() < 0.05:
        return chance.randbytes(chance.randrange(2000))
    lines = chance.choice(RECIPES).splitlines(keepends=True)
    for _ in range(chance.randint(1, 4)):
        where = chance.randrange(len(lines))
        line = lines[where]
        at = chance.randrange(len(line) + 1)
        lines[where] = chance.choice([
            line + line,
            line[:at] + chance.choice(PIECES) + line[at:],
            line.partition(":")[0] + ": " + chance.choice(PIECES) + "\n",
            " " * chance.randrange(9) + line.lstrip(),
            line.rstrip("\n"),
            line[:at] + line[at + 1 :],
            "".join(chance.sample(lines, 2)) + line,
            line * chance.choice([1, 1, 1, 3000]),
        ])  # fmt: skip
        if chance.random() < 0.05:
            lines.insert(0, f"bomb: {bomb(chance.randint(2, 9))}\n")
    if chance.random() < 0.1:
        whole = "".join(lines)
        whole = chance.choice(
            [whole.replace("  ", "\t"), whole.replace("\n", "\r\n"), "\ufeff" + whole, whole.replace(" ", "\xa0")]
        )
        return whole.encode(chance.choice(ENCODINGS), "replace")
    text = bytearray("".join(lines).encode("utf-8", "surrogatepass"))
    for _ in range(chance.choice([0, 0, 0, 1, 3])):
        text[chance.randrange(len(text))] = chance.randrange(256)
    return bytes(text)


def bomb(width: int) -> str:
    """Return aliases of aliases, on one line."""
    levels = ["&b0 x", *(f"&b{level} [{', '.join([f'*b{level - 1}'] * width)}]" for level in range(1, width + 1))]
    return f"[{', '.join(levels)}]"


def broken_recipe(chance: random.Random) -> Any:
    """Return a shipped recipe's content with some fields replaced, removed, added or moved."""
    recipe = yaml.safe_load(chance.choice(RECIPES))
    for _ in range(chance.randint(1, 5)):
        holder, name = chance.choice(list(places(recipe)))
        match chance.randrange(5):
            case 0:
                del holder[name]
                if not recipe:
                    break
            case 1 if isinstance(holder, dict):
                holder[chance.choice(FIELDS)] = copy.deepcopy(chance.choice(VALUES))
            case 2:
                _, taken = chance.choice(list(places(recipe)))
                holder[name] = copy.deepcopy(recipe.get(taken)) if isinstance(taken, str) else chance.choice(VALUES)
            case _:
                holder[name] = copy.deepcopy(chance.choice(VALUES))
    return recipe


def sprouted(chance: random.Random) -> Any:
    """Return a shipped recipe with some sections generated from the schema."""
    recipe = yaml.safe_load(chance.choice(RECIPES))
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(list(ContinuousRecipe.model_fields))
        grown = value_of(ContinuousRecipe.model_fields[name], chance)
        holders = [holder for holder, _ in places(recipe) if isinstance(holder, dict) and name in holder] or [recipe]
        holder = chance.choice(holders)
        old = holder.get(name)
        holder[name] = (
            old | grown if isinstance(old, dict) and isinstance(grown, dict) and chance.random() < 0.7 else grown
        )
    return recipe


def section(model: type[BaseModel], chance: random.Random, depth: int) -> dict[str, Any]:
    """Return some fields of a model, mostly with valid values."""
    fields = list(model.model_fields.items())
    most = chance.choice([0, 1, 2, 4])
    chosen = chance.sample(fields, min(most, len(fields)))
    if chance.random() < 0.8:
        chosen += [item for item in fields if item[1].is_required() and item not in chosen]
    return {info.alias or name: value_of(info, chance, depth + 1) for name, info in chosen}


def value_of(field: FieldInfo, chance: random.Random, depth: int = 0) -> Any:
    """Return a value for a field: one of its type, at its bounds, or of another type."""
    if chance.random() < 0.05 or depth > 6:
        return copy.deepcopy(chance.choice(VALUES))
    bounds = [
        bound
        for each in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if (bound := getattr(each, name, None)) is not None
    ]
    if bounds and chance.random() < 0.7:
        bound = chance.choice(bounds)
        return chance.choice(
            [bound, bound + 1, bound - 1, bound * 2, bound / 2 if isinstance(bound, float) else bound // 2]
        )
    return of_kind(field.annotation, chance, depth)


def of_kind(annotation: Any, chance: random.Random, depth: int) -> Any:
    """Return a value of a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return section(annotation, chance, depth)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return chance.choice(inner)
    if origin is list:
        return [of_kind(inner[0], chance, depth + 1) for _ in range(chance.choice([0, 1, 1, 2, 3]))]
    if origin is dict:
        return {chance.choice(NAMES): of_kind(inner[1], chance, depth + 1) for _ in range(chance.choice([0, 1, 2]))}
    if origin is Annotated:
        return of_kind(inner[0], chance, depth)
    if inner:
        return of_kind(chance.choice(inner), chance, depth)
    kinds: dict[Any, list[Any]] = {
        bool: [True, False],
        int: NUMBERS,
        float: NUMBERS,
        str: TEXTS,
        type(None): [None],
    }
    return chance.choice(kinds.get(annotation, VALUES))


def places(value: Any) -> Any:
    """Yield the container and the name of every field and item."""
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, name
        if isinstance(item, dict | list):
            yield from places(item)


def fields() -> list[str]:
    """Return the names of all fields of a recipe."""
    schema = recipe_of({}).model_json_schema()
    found = {name for model in [schema, *schema["$defs"].values()] for name in model.get("properties", {})}
    return sorted(found | {"pretrian", "x", ""})


FIELDS = fields()
NAMES = ["a", "web", "chat", "statements", "x" * 70, "", "1", "old.bits_per_byte"]
TEXTS = [each for each in VALUES if isinstance(each, str) and each != "/"]  # searching / takes minutes
NUMBERS = [0, 1, -1, 2, 3, 7, 8, 37, 64, 0.5, 1e-300, 1e308, 2**31, 2**63 - 1]


def seconds_of(read: Callable[[], Recipe]) -> float:
    """Return the CPU time of this process until the answer, since other processes may be running. Exceptions other
    than RecipeError fail the test."""
    started = time.process_time()
    try:
        recipe: BaseModel | None = read()
    except RecipeError as error:
        assert error.exit_code == 2
        assert error.problems
        error.message.encode()
        assert "\x1b" not in error.message
        recipe = error.recipe
    took = time.process_time() - started
    if isinstance(recipe, Recipe):
        found = examined_recipe(recipe, [], {}, None, elsewhere=False)
        lines = "\n".join(found.lines())
        assert "\x1b" not in lines.encode().decode()
        json.dumps(found.as_json(None), default=str)
    return took


def fuzz(folder: Path, many: int, seed: int) -> float:
    """Return the longest time of these recipes in seconds."""
    longest = 0.0
    for number in range(seed, seed + many):
        chance = random.Random(number)
        if number % 2:
            path = folder / f"recipe{chance.choice(['.yaml', '.yaml', '.yaml', '.json', '.yml'])}"
            path.write_bytes(broken_text(chance))
            took = seconds_of(lambda path=path: load(path, recipe_of, check=checked))  # type: ignore[misc]
        else:
            recipe = chance.choice([broken_recipe, sprouted])(chance)
            took = seconds_of(lambda recipe=recipe: checked(recipe_of(recipe)))  # type: ignore[misc]
        assert took < LONGEST_S, f"{took:.1f} s with the seed {number}"
        longest = max(longest, took)
    return longest


@pytest.mark.long
def test_a_hundred_recipes_that_are_broken_at_random(tmp_path: Path) -> None:
    fuzz(tmp_path, 100, seed=0)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_many_recipes_that_are_broken_at_random(tmp_path: Path) -> None:
    many = int(os.environ.get("BATON_FUZZ", "1000"))
    print(f"longest answer of {many}: {fuzz(tmp_path, many, seed=1000):.2f} s")


@pytest.mark.long
@pytest.mark.parametrize("option", ["run", "plan", "schedule"])
def test_a_command_ends_with_2_and_without_a_traceback(tmp_path: Path, option: str) -> None:
    """The commands run as a user would start them, with an alias bomb and with a truncated file."""
    (tmp_path / "recipe.yaml").write_text(f"name: 024\nbomb: {bomb(9)}\n")
    commands = {
        "run": [str(Path(sys.executable).with_name("pyflyte")), "run", "workflows/pretrain_to_rl.py", "pretrain_to_rl"],
        "plan": [sys.executable, "-m", "baton", "plan"],
        "schedule": [sys.executable, "-m", "baton", "schedule", "--list"],
    }
    file = [str(tmp_path / "recipe.yaml")] if option == "plan" else ["--recipe", str(tmp_path / "recipe.yaml")]
    done = subprocess.run([*commands[option], *file], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert "with aliases expanded" in done.stderr + done.stdout

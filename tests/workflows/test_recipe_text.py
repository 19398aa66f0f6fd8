"""A recipe's text: content that YAML would accept silently, or that would cause a traceback, a hang or an
out-of-memory error."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError
from baton.workflows.recipe.text import load
from tests.shipped import shipped, shipped_text


def read(text: str) -> Any:
    """Return the value of a text without validating it as a recipe. Braces are added, unless the text begins with {."""
    found: list[Any] = []

    class Taken(Exception):
        pass

    def take(value: Any) -> Recipe:
        found.append(value)
        raise Taken

    with pytest.raises(Taken):
        load("{" + text if not text.lstrip().startswith("{") else text, take)
    return found[0]


def refused(path: Path, text: str | bytes) -> RecipeError:
    """Return the error for a file with that text."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RecipeError) as caught:
        load(path, Recipe.model_validate)
    assert caught.value.exit_code == 2
    caught.value.message.encode()  # the message can be printed
    return caught.value


# the text of a recipe: (the reported field, a part of the message)
TEXTS = {
    "pretrain: {steps: 5}\npretrain: {steps: 6}": ("pretrain", "is repeated on line 2"),
    "pretrain: {steps: 5, steps: 6}": ("pretrain.steps", "is repeated on line 1"),
    "pretrain: {steps: 024}": ("pretrain.steps", "ambiguous: write a number in decimal digits"),
    "pretrain: {steps: 0o24}": ("pretrain.steps", "ambiguous"),
    "pretrain: {steps: 1_000}": ("pretrain.steps", "ambiguous"),
    "pretrain: {steps: 1:20}": ("pretrain.steps", "valid integer"),
    "%YAML 1.1\n---\npretrain: {steps: 1:20}": ("pretrain.steps", "ambiguous"),
    "%YAML 1.1\n---\naudit: off": ("audit", "true or false"),
    "pretrain: {steps: true}": ("pretrain.steps", "valid integer"),
    "shards: on": ("shards", "write `shards: {}`"),
    "shards: yes": ("shards", "write `shards: {}`"),
    "shards: true": ("shards", "write `shards: {}`"),
    "pretrain: {steps: 99999999999999999999999}": ("pretrain.steps", "64-bit"),
    "pretrain: {steps: " + "9" * 100_000 + "}": ("pretrain.steps", "64-bit"),
    "name: !!python/object:os.system x": ("name", "without the tag"),
    "pretrain: !mine {steps: 5}": ("pretrain", "no tags"),
    "1: {}": ("1", "a field's name is a string"),
    "? [a, b]\n: {}": ("[", "a field's name is a string"),
    'name: "\\ud800"': ("name", "unpaired surrogates"),
    'name: "a\\0b"': ("name", "NUL"),
    '"\\ud800": {}': ("recipe", "unpaired surrogates"),
    "data: {a: &a {path: x}, b: &b {path: y}, c: {<<: *a, <<: *b}}": ("data.c.<<", "is repeated on line 1"),
    "<<: 5": ("<<", "an alias of a mapping"),
    "pretrain: &a {steps: *a}": ("recipe", "nesting"),
    "pretrain: &a\n  <<: *a": ("recipe", "nesting"),
    "pretrain: " + "[" * 300 + "]" * 300: ("recipe", "levels of nesting"),
    "[" * 500_000: ("recipe", "levels of nesting"),
    "pretrain: {steps: 5": ("recipe", "YAML or JSON: line 1"),
    "pretrain:\n  steps: 5\n steps: 6": ("recipe", "YAML or JSON: line 3"),
    "a: *nothing": ("recipe", "undefined alias"),
    "name: one\n---\nname: two": ("recipe", "single document"),
    "": ("recipe", "a mapping of sections"),
    "- 1": ("recipe", "a mapping of sections"),
    "just words": ("recipe", "a mapping of sections"),
    "a: [" + "1," * 100_000 + "]": ("recipe", "20,000 values"),
    "#" * (2**20 + 1): ("recipe", "1,048,576 bytes"),
    "é" * 2**20: ("recipe", "1,048,576 bytes"),
    'name: "\\U00110000"': ("recipe", "YAML or JSON"),
    'name: "\\UFFFFFFFF"': ("recipe", "YAML or JSON"),
    "name: !<tag:yaml.org,2002:int> x": ("name", "ambiguous"),
}


@pytest.mark.parametrize(
    ("text", "path", "words"), [(text, *answer) for text, answer in TEXTS.items()], ids=lambda it: str(it)[:40]
)
def test_a_text_is_answered_with_its_field_and_a_way_out(tmp_path: Path, text: str, path: str, words: str) -> None:
    found = refused(tmp_path / "recipe.yaml", text).problems
    assert any(each.path.startswith(path) and words in each.allowed for each in found), found


def test_an_alias_that_multiplies_is_refused(tmp_path: Path) -> None:
    """9 levels of 9 aliases each are 400 million values."""
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 10)]
    assert "with aliases expanded" in str(refused(tmp_path / "recipe.yaml", "\n".join(["a0: &a0 x", *levels])))


def test_a_merge_that_multiplies_is_refused(tmp_path: Path) -> None:
    levels = [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}" for level in range(1, 10)]
    assert "with aliases expanded" in str(refused(tmp_path / "recipe.yaml", "\n".join(["a0: &a0 {x: 1}", *levels])))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("recipe.toml", b"name = 'x'", "ends in .yaml, .yml, .json"),
        ("recipe", b"name: x", "ends in .yaml, .yml, .json"),
        ("recipe.yaml", b"\x89PNG\r\n\x1a\n\x00\xff", "text in UTF-8; byte 0 is not"),
        ("recipe.yaml", "name: x".encode("utf-16"), "text in UTF-8"),
        ("recipe.json", b'{"name": "x",', "YAML or JSON: line 1"),
        ("recipe.yaml", b"name: x\0", "YAML or JSON"),
    ],
)
def test_a_file_that_is_no_recipe_is_answered(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    assert words in str(refused(tmp_path / name, content))


@pytest.mark.parametrize(
    ("path", "words"),
    [("/no/such.yaml", "an existing"), ("x" * 5000, "too long"), ("a\0b", "an existing"), ("/dev/stdin", "a device or a pipe"), (".", "folder"), ("", "folder"), ("\udcff.yaml", "an existing")],
)  # fmt: skip
def test_a_path_without_a_file_is_answered(path: str, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(path, Recipe.model_validate)
    assert words in caught.value.message
    caught.value.message.encode()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "recipe.yaml")
    with pytest.raises(RecipeError, match="a pipe"):
        load(tmp_path / "recipe.yaml", Recipe.model_validate)


def test_what_is_wrong_with_the_text_does_not_hide_what_is_wrong_with_the_recipe(tmp_path: Path) -> None:
    text = "name: x\nname: y\npretrain: {steps: 024, seed: -1}\nshards: !mine {}\nserve: {step: 5}\n"
    paths = {problem.path for problem in refused(tmp_path / "recipe.yaml", text).problems}
    assert {"name", "pretrain.steps", "pretrain.seed", "shards", "serve.step"} <= paths


def test_a_problem_says_the_line(tmp_path: Path) -> None:
    message = str(
        refused(
            tmp_path / "recipe.yaml", "name: x\n\npretrain:\n  model:\n    layers: 0\ncorpus: {source: {kind: files}}"
        )
    )
    assert "pretrain.model.layers: 0 (line 5)" in message
    assert "corpus.source.path: (not given) (line 6)" in message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":1,\t"b":[1.5,1e-5,-3,true,null,"x"]}', {"a": 1, "b": [1.5, 1e-5, -3, True, None, "x"]}),
        ('\t{\n\t"a":\t"x"\n\t}\n\t', {"a": "x"}),
        ("{a: 'x\ty', b: \"x\ty\",\tc: [1,\t2]}", {"a": "x\ty", "b": "x\ty", "c": [1, 2]}),
        ('{"a":"\\ud83d\\ude00\\/"}', {"a": "😀/"}),
        ("{a: 2024-01-01, b: =, c: 'on', d: off, e: 1:20, f: 'no'}", {"a": "2024-01-01", "b": "=", "c": "on", "d": "off", "e": "1:20", "f": "no"}),
        ("{a: &a {x: 1, y: 2}, b: {<<: *a, y: 3}, c: *a}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2}}),
        ("{a: &a {x: 1}, b: &b {x: 2, y: 2}, c: {<<: [*a, *b]}}", {"a": {"x": 1}, "b": {"x": 2, "y": 2}, "c": {"x": 1, "y": 2}}),
        ("{a: ~, b: , c: Null, d: TRUE, e: +5, f: -.5, g: 1., h: 1E3}", {"a": None, "b": None, "c": None, "d": True, "e": 5, "f": -0.5, "g": 1.0, "h": 1000.0}),
    ],
)  # fmt: skip
def test_a_text_is_read_as_yaml_1_2_with_merge_keys(text: str, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize("name", ["recipe.yaml", "recipe.yml", "recipe.json", "RECIPE.YAML"])
@pytest.mark.parametrize("written", ["utf-8", "utf-8-sig"])
def test_the_same_recipe_is_read_from_yaml_and_json(tmp_path: Path, name: str, written: str) -> None:
    written_text, content = shipped_text("laptop.yaml"), shipped("laptop.yaml")
    text = json.dumps(content, indent="\t") if name.endswith("json") else written_text.replace("\n", "\r\n")
    (tmp_path / name).write_bytes(text.encode(written))
    assert load(tmp_path / name, Recipe.model_validate) == Recipe.model_validate(content)


def test_a_recipe_may_stand_on_the_command_line() -> None:
    assert load('{"name": "here"}', Recipe.model_validate).name == "here"

"""The documentation is correct: its links, files, recipes, Python code and commands."""

import ast
import json
import re
from pathlib import Path
from pkgutil import resolve_name

import click
import jsonschema
import pytest
import yaml

from baton.workflows.checks.table import checked
from baton.workflows.command_line import COMMANDS
from baton.workflows.recipe import Recipe
from tests.docs.pages import PAGES, Block, anchors, blocks, commands, links, named_files, page_blocks
from tests.posttrain.tiny import tiny_model
from tests.source import HOUSE, ROOT

SCHEMA = json.loads((ROOT / "workflows/recipes/schema.json").read_text())
TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))

OTHER_COMMANDS = {".", "apt-get", "aws", "cd", "docker", "export", "git", "helm", "kubectl", "sky", "uv", "pyflyte"}


def name(item: object) -> str:
    return str(item.relative_to(ROOT)) if isinstance(item, Path) else str(item)


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_the_index_for_language_models_has_every_page() -> None:
    listed = set(re.findall(r"\]\(([^)]+)\)", (ROOT / "docs/llms.txt").read_text()))
    assert listed == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} - {"index.md"}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    assert [path for path in named_files(page) if "<" not in path and not (ROOT / path).exists()] == []


@pytest.fixture(scope="module")
def own_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the recipes expect from the user."""
    folder = tmp_path_factory.mktemp("own")
    tiny_model(folder / "my-model", turns=True)
    for page, file in (("post-training", "reward.py"), ("environments", "shop.py")):
        (code,) = [block for block in page_blocks(ROOT / f"docs/{page}.md") if block.language == "python"]
        (folder / file).write_text(code.text)
    for path in ("text/one.txt", "notes/one.md", "data/one.jsonl"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps({"text": "A document."}) + "\n")
    asked = [{"role": "user", "content": f"{number}+2="} for number in range(100)]  # some are held out
    chat = [{"messages": [each, {"role": "assistant", "content": "4"}]} for each in asked]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chat))
    customers = [{"prompt": [each], "money": 3} for each in asked]
    (folder / "customers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in customers))
    return folder


@pytest.mark.parametrize("block", blocks("yaml"), ids=name)
def test_a_recipe_or_a_part_of_one_is_valid(block: Block, own_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_files)
    recipe = yaml.safe_load(block.text)
    jsonschema.Draft202012Validator(SCHEMA).validate(recipe)
    if "name" in recipe:
        checked(Recipe.model_validate(recipe))


@pytest.mark.parametrize("block", blocks("python"), ids=name)
def test_python_parses_and_imports_what_exists(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in HOUSE:
            exec(ast.unparse(node))  # as Python does, which also imports a module of a package


def flags_of(command: click.Command) -> set[str]:
    """Return the options of a command and of those below it."""
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = {flag for parameter in command.params for flag in parameter.opts}
    return own.union(*map(flags_of, inner), {"--help"})


@pytest.mark.parametrize(("block", "words"), list(commands()), ids=name)
def test_a_command_names_what_exists(block: Block, words: list[str]) -> None:
    match words:
        case ["make", target, *_]:
            assert target in TARGETS
        case ["python", "-m", "pytest", *options]:
            assert [word for word in options if "/" in word and not (ROOT / word).exists()] == []
        case ["python", "-m", module, *options]:
            place = ROOT.joinpath(*module.split("."))
            assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
            sources = place.glob("*.py") if place.is_dir() else [place.with_suffix(".py")]
            source = "".join(path.read_text() for path in sources)
            flags = [word for word in options if word.startswith("--")]
            assert [flag for flag in flags if flag not in source and flag[2:].replace("-", "_") not in source] == []
        case ["baton", command, *options]:
            used = {word.partition("=")[0] for word in options if word.startswith("--")}
            assert used <= (known := flags_of(resolve_name(COMMANDS[command][0]))), used - known
        case ["pyflyte", *_, script, workflow, "--recipe", _]:
            path = ROOT / script.removeprefix("$BATON/")
            assert re.search(rf"^def {workflow}\(", path.read_text(), re.M)
        case _:
            assert words[0] in OTHER_COMMANDS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_with_commands_of_the_environment_activates_it_first(page: Path) -> None:
    lines = [line for block in page_blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    used = [number for number, line in enumerate(lines) if re.match(r"(\w+=\S+ )*(python|pyflyte|baton|uv) ", line)]
    active = [number for number, line in enumerate(lines) if re.match(r"\. (\$BATON/)?\.venv/bin/activate", line)]
    assert not used or (active and active[0] < used[0])

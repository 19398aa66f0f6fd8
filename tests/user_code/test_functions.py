"""A user's function is found by its name, carried as source, and imported elsewhere."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.infra.errors import UserError
from baton.tasks.core.job import StageError
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.rewards.builtin.math import Math
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.user_code.functions import LARGEST_BYTES, Function

SUMS = """\
from words import unit


def right(completions, answer, **kwargs):
    return [float(one == each + unit) for one, each in zip(completions, answer)]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with sums.py, which imports words.py. Imported modules are forgotten at the end."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "sums.py").write_text(SUMS)
    (folder / "words.py").write_text("unit = ' apples'\n")
    monkeypatch.chdir(folder)
    known, path = set(sys.modules), list(sys.path)
    yield folder
    sys.path[:] = path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def function(name: str) -> Function:
    return Function.model_validate(name)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# Identity by meaning


def test_a_comment_changes_no_key_and_stays_in_the_source_that_is_executed(project: Path) -> None:
    before = RewardSpec(function=function("sums.py:right")).pinned()
    commented = SUMS.replace("\n\n\ndef", "\n\n# why\n\n\ndef")
    (project / "sums.py").write_text(commented)
    after = RewardSpec(function=function("sums.py:right")).pinned()

    assert after.identity() == before.identity()
    spec, options = after.split_options()
    assert spec == before.split_options()[0]
    assert spec.with_options(json.loads(json.dumps(options))) == after
    assert after.function and after.function.source and after.function.source["sums.py"] == commented


def test_a_function_in_a_list_is_split_with_it(project: Path) -> None:
    (project / "sums.py").write_text(f"# why\n{SUMS}")
    tuned = GRPOSpec(data="sums", rewards=[RewardSpec(math=Math()), RewardSpec(function=function("sums.py:right"))])
    spec, options = tuned.pinned().split_options()
    assert spec.with_options(options) == tuned.pinned()
    assert "# why" not in spec.model_dump_json() and spec.identity() == tuned.pinned().identity()


def test_a_changed_meaning_of_an_imported_file_changes_the_key(project: Path) -> None:
    before = function("sums.py:right").pinned().identity()
    (project / "words.py").write_text("unit = ' pears'\n")
    assert function("sums.py:right").pinned().identity() != before


# Finding, carrying and importing a function


def test_the_source_of_the_file_and_of_what_it_imports_travels_in_the_spec(project: Path, tmp_path: Path) -> None:
    found = function("sums.py:right").pinned()

    assert found.source == {"sums.py": SUMS, "words.py": "unit = ' apples'\n"}

    elsewhere = Function.model_validate_json(found.model_dump_json())
    right = elsewhere.load(tmp_path / "pod")
    assert right(["3 apples", "3"], ["3", "3"]) == [1.0, 0.0]


def test_where_the_file_is_does_not_change_what_it_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = function("sums.py:right").pinned()
    monkeypatch.chdir(project.parent)

    assert function("project/sums.py:right").pinned().identity() == here.identity()
    assert function(f"{project}/sums.py:right").pinned().identity() == here.identity()


def test_what_was_found_is_not_looked_for_again(project: Path) -> None:
    found = function("sums.py:right").pinned()
    (project / "sums.py").unlink()

    assert found.pinned() == found
    assert found.problems() == []


def test_another_text_of_an_imported_file_is_another_function(project: Path) -> None:
    before = function("sums.py:right").pinned()
    (project / "words.py").write_text("unit = ' pears'\n")

    assert function("sums.py:right").pinned().identity() != before.identity()


def test_a_module_of_the_project_is_found_from_the_current_directory(project: Path, tmp_path: Path) -> None:
    write(project / "checks/rewards.py", "from checks.text import same\n")
    write(project / "checks/text.py", "def same(completions, **kwargs):\n    return [0.5]\n")

    found = function("checks.rewards:same").pinned()

    assert found.name == "checks/rewards.py:same"
    assert list(found.source or ()) == ["checks/rewards.py", "checks/text.py"]
    assert found.load(tmp_path / "pod")([""]) == [0.5]


def test_a_file_of_a_package_may_import_its_neighbours_relatively(project: Path, tmp_path: Path) -> None:
    write(project / "pack/__init__.py", "FACTOR = 2\n")
    write(project / "pack/inner/__init__.py", "")
    write(project / "pack/inner/sums.py", "from .. import FACTOR\nfrom ..other import one\ndef f(): return one() * 2\n")
    write(project / "pack/other.py", "def one(): return 1\n")

    found = function("pack/inner/sums.py:f").pinned()

    assert list(found.source or ()) == ["pack/__init__.py", "pack/inner/__init__.py", "pack/inner/sums.py", "pack/other.py"]  # fmt: skip  # noqa: E501
    assert found.load(tmp_path / "pod")() == 2


def test_an_import_inside_a_function_and_in_a_circle_is_found_too(project: Path) -> None:
    write(project / "a.py", "def f():\n    import b\n    return b.x\n")
    write(project / "b.py", "import a\nx = 1\n")

    assert list(function("a.py:f").pinned().source or ()) == ["a.py", "b.py"]


def test_an_installed_function_is_known_by_its_package_s_version(project: Path, tmp_path: Path) -> None:
    found = function("blake3:blake3").pinned()

    assert (found.version or "").startswith("blake3 ")
    assert found.source is None
    assert found.load(tmp_path)(b"").digest()
    assert (function("statistics:mean").pinned().version or "").startswith("python 3.")


# Errors before any code is run


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.py:f", "an existing file; "),
        ("sums.py:wrong", "a function of sums.py: right"),
        ("words.py:f", "a function of words.py: (it has none)"),
        ("broken.py:f", "broken.py, line 2"),
        ("latin.py:f", "a file of Python source"),
        ("random.py:f", "not modules of Python's standard library; rename random"),
        ("version.2.py:f", "it has a dot in its name"),
        ("nowhere.at_all:f", "there is no nowhere"),
        ("~no_such_user_here/sums.py:f", "home directory"),
    ],
)
def test_what_is_wrong_with_a_name(project: Path, name: str, words: str) -> None:
    (project / "broken.py").write_text("x = 1\ndef f(:\n")
    (project / "latin.py").write_bytes(b"x = '\xe9'\n")
    (project / "random.py").write_text("def f(): ...\n")
    (project / "version.2.py").write_text("def f(): ...\n")

    (problem,) = function(name).problems()

    assert problem.path == "name"
    assert problem.value == name
    assert words in problem.allowed
    with pytest.raises(UserError, match="name"):
        function(name).pinned()


@pytest.mark.parametrize("name", ["sums.py", "words.py"])
def test_a_file_in_another_encoding_is_refused(project: Path, name: str) -> None:
    """The copy would be in UTF-8, but would be read in the encoding that it declares."""
    source = (project / name).read_text() + "# the price in £\n"
    (project / name).write_bytes(f"# -*- coding: latin-1 -*-\n{source}".encode("latin-1"))
    (problem,) = function("sums.py:right").problems()
    assert f"{name} is in iso-8859-1: save it as UTF-8" in problem.allowed


def test_nothing_of_the_file_is_run_to_find_it(project: Path) -> None:
    (project / "sums.py").write_text("raise SystemExit('run')\ndef right(completions): ...\n")

    assert function("sums.py:right").problems() == []


@pytest.mark.parametrize(
    "text",
    ["from words import unit as f", "f = print", "try:\n    from a import f\nexcept ImportError:\n    f = None",
     "if True:\n    def f(): ...\nelse:\n    f = 1", "from words import *", "class f:\n    pass", "f: object = print"],
)  # fmt: skip
def test_a_name_may_be_made_in_any_way(project: Path, text: str) -> None:
    (project / "made.py").write_text(text)

    assert function("made.py:f").problems() == []


def test_more_source_than_fits_is_an_error_with_a_way_out(project: Path) -> None:
    (project / "words.py").write_text("unit = ''\nTABLE = " + repr("x" * LARGEST_BYTES))

    (problem,) = function("sums.py:right").problems()

    assert "at most 1 MB" in problem.allowed
    assert "put its data into the rows" in problem.allowed


@pytest.mark.parametrize("name", ["right", "sums.py", "sums.py:", "sums.py:a.b", "sums:right now", ":right", 3, None])
def test_a_name_has_a_place_and_a_function(name: object) -> None:
    with pytest.raises(ValueError, match="Function"):
        Function.model_validate(name)


# Errors during the import


def test_an_error_of_an_import_says_file_and_line(project: Path, tmp_path: Path) -> None:
    (project / "words.py").write_text("\nunit = 1 / 0\n")

    with pytest.raises(StageError, match=r"ZeroDivisionError: division by zero \(words.py, line 2: unit = 1 / 0\)"):
        function("sums.py:right").pinned().load(tmp_path / "pod")


def test_a_name_that_is_taken_is_an_error(project: Path, tmp_path: Path) -> None:
    (project / "baton.py").write_text("def f(): ...\n")

    with pytest.raises(StageError, match=r"the name baton is taken by .*; rename the file"):
        function("baton.py:f").pinned().load(tmp_path / "pod")


def test_source_from_elsewhere_is_written_below_its_folder_only(tmp_path: Path) -> None:
    crafted = Function(name="../x.py:f", source={"../x.py": "def f(): ...\n"})

    with pytest.raises(StageError, match="outside its folder"):
        crafted.load(tmp_path / "pod")
    assert not (tmp_path / "x.py").exists()


@given(st.text())
def test_any_text_as_a_file_has_an_answer(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("any") / "any_text.py"
    file.write_bytes(text.encode(errors="surrogatepass"))

    assert all(problem.allowed for problem in function(f"{file}:f").problems())

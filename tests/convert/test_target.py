"""A conversion only deletes files that it wrote itself and, with --replace, the model that it replaces."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.convert.export_model import ExportOptions, export_model
from baton.tasks.convert.import_model import ImportOptions, import_model, open_hugging_face
from baton.tasks.convert.megatron_model import open_megatron
from baton.tasks.core.manifest import write_manifest
from baton.tasks.models.errors import ConversionError
from tests.convert.test_bad_input import assert_same_folders
from tests.convert.test_round_trip import quietly, to_hugging_face, to_megatron


def convert(direction: str, source: Path, target: Path, **options: Any) -> Path:
    return (to_megatron if direction == "import" else to_hugging_face)(source, target, **options)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def home(root: Path) -> Path:
    """A folder whose files must not change."""
    (root / "home" / "photos").mkdir(parents=True)
    (root / "home" / "precious").write_text("mine")
    (root / "home" / "photos" / "one").write_text("mine")
    return root / "home"


# TARGET.partial


def test_a_folder_of_somebody_else_in_the_partials_place_is_left_alone(
    direction: str, source: Path, tmp_path: Path
) -> None:
    place = home(tmp_path).rename(tmp_path / "target.partial")
    before = files(tmp_path)
    with pytest.raises(ConversionError, match=r"target\.partial: is not an unfinished conversion"):
        convert(direction, source, tmp_path / "target")
    assert files(tmp_path) == before
    assert place.is_dir()


def test_a_file_in_the_partials_place_is_left_alone(direction: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "target.partial").write_text("mine")
    with pytest.raises(ConversionError, match=r"target\.partial: is not an unfinished conversion"):
        convert(direction, source, tmp_path / "target")
    assert files(tmp_path) == {"target.partial": b"mine"}


def test_an_empty_folder_in_the_partials_place_is_used(direction: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "target.partial").mkdir()
    convert(direction, source, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("place", ["target", "target.partial"])
@pytest.mark.parametrize("to", ["home", "nowhere"])
@pytest.mark.parametrize("replace", [False, True])
def test_symlinks_are_refused(direction: str, source: Path, place: str, to: str, replace: bool, tmp_path: Path) -> None:
    home(tmp_path)
    (tmp_path / place).symlink_to(tmp_path / to)
    before = files(tmp_path)
    with pytest.raises(ConversionError, match=f"{place}: is a symbolic link to .*{to}; "):
        convert(direction, source, tmp_path / "target", replace=replace)
    assert files(tmp_path) == before
    assert not (tmp_path / "nowhere").exists()


# Inputs that the target would overwrite


def copied(source: Path, target: Path) -> Path:
    import shutil

    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copytree(source, target))


OVERLAPS: dict[str, tuple[str, str]] = {  # source, target
    "the same": ("a", "a"),
    "the source is the partial folder": ("a.partial", "a"),
    "the source is in the partial folder": ("a.partial/src", "a"),
    "the source is in the target": ("a/src", "a"),
    "the source is deep in the target": ("a/b/c/src", "a"),
    "the target is in the source": ("a", "a/out"),
    "the target is deep in the source": ("a", "a/b/c/out"),
    "the same, in other words": ("a/src", "b/../a"),
}


@pytest.mark.parametrize("case", OVERLAPS)
@pytest.mark.parametrize("replace", [False, True])
def test_a_target_that_overlaps_its_source_is_refused(
    direction: str, source: Path, case: str, replace: bool, tmp_path: Path
) -> None:
    (tmp_path / "b").mkdir()
    source_name, target_name = OVERLAPS[case]
    copied(source, tmp_path / source_name)
    if case != "the same":
        (tmp_path / source_name).with_name("sibling").write_text("mine")
    before = files(tmp_path)
    with pytest.raises(ConversionError, match=r"and its input .* overlap"):
        convert(direction, tmp_path / source_name, tmp_path / target_name, replace=replace)
    assert files(tmp_path) == before


def test_a_source_behind_a_symlink_overlaps_as_well(direction: str, source: Path, tmp_path: Path) -> None:
    copied(source, tmp_path / "a" / "src")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "src")
    before = files(tmp_path)
    with pytest.raises(ConversionError, match=r"and its input .* overlap"):
        convert(direction, tmp_path / "link", tmp_path / "a", replace=True)
    assert files(tmp_path) == before


def test_a_source_whose_files_are_links_into_the_target_overlaps_as_well(models: Path, tmp_path: Path) -> None:
    """The Hub's cache consists of such links."""
    there = copied(models / "theirs", tmp_path / "there")
    (tmp_path / "linked").mkdir()
    for path in there.iterdir():
        (tmp_path / "linked" / path.name).symlink_to(path)
    before = files(there)
    with pytest.raises(ConversionError, match=r"and its input .* overlap"):
        to_megatron(tmp_path / "linked", there, replace=True)
    assert files(there) == before
    to_megatron(tmp_path / "linked", tmp_path / "elsewhere")


@pytest.mark.parametrize("place", ["out/tokenizer", "out.partial", "out"])
def test_a_target_that_overlaps_its_tokenizer_is_refused(models: Path, place: str, tmp_path: Path) -> None:
    tokenizer = tmp_path / place
    tokenizer.mkdir(parents=True)
    (tokenizer / "tokenizer.json").write_text("{}")
    with pytest.raises(ConversionError, match=r"and its input .* overlap"):
        to_hugging_face(models / "ours", tmp_path / "out", tokenizer, replace=True)
    assert files(tmp_path) == {f"{place}/tokenizer.json": b"{}"}


def test_a_folder_beside_its_source_does_not_overlap(direction: str, source: Path, tmp_path: Path) -> None:
    copied(source, tmp_path / "a" / "model")
    convert(direction, tmp_path / "a" / "model", tmp_path / "a" / "model-2")


# --replace


@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_that_is_no_model_is_not_replaced(direction: str, source: Path, replace: bool, tmp_path: Path) -> None:
    place = home(tmp_path)
    (place / "config.json").write_text('{"theme": "dark"}')
    (place / "manifest.json").write_text('{"name": "my web app"}')
    before = files(place)
    words = "not a model or a checkpoint.*delete it yourself" if replace else "exists; choose another target"
    with pytest.raises(ConversionError, match=words):
        convert(direction, source, place, replace=replace)
    assert files(place) == before


def test_an_artifact_that_is_no_model_is_not_replaced(direction: str, source: Path, tmp_path: Path) -> None:
    place = tmp_path / "corpus"
    place.mkdir()
    (place / "documents").write_text("mine")
    write_manifest(place, "corpus", {})
    before = files(place)
    with pytest.raises(ConversionError, match="not a model or a checkpoint"):
        convert(direction, source, place, replace=True)
    assert files(place) == before


def test_a_file_is_not_replaced(direction: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    with pytest.raises(ConversionError, match="not a model or a checkpoint"):
        convert(direction, source, tmp_path / "target", replace=True)
    assert files(tmp_path) == {"target": b"mine"}


@pytest.mark.parametrize("what", ["theirs", "ours", "ours/checkpoint", "an empty folder"])
def test_models_and_checkpoints_are_replaced(
    direction: str, source: Path, models: Path, what: str, tmp_path: Path
) -> None:
    if what == "an empty folder":
        (tmp_path / "target").mkdir()
    else:
        copied(models / what, tmp_path / "target")
    convert(direction, source, tmp_path / "target", replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert_same_folders(tmp_path / "target", convert(direction, source, tmp_path / "undisturbed"))


def test_a_target_that_came_into_being_meanwhile_is_left_alone(direction: str, source: Path, tmp_path: Path) -> None:
    def somebody_else(done: int, total: int) -> None:
        (tmp_path / "target").mkdir(exist_ok=True)
        (tmp_path / "target" / "precious").write_text("mine")

    with pytest.raises(ConversionError, match="target: exists"):
        run(direction, source, tmp_path / "target", somebody_else)
    assert files(tmp_path / "target") == {"precious": b"mine"}


def run(direction: str, source: Path, target: Path, progress: Callable[[int, int], None] = quietly) -> None:
    if direction == "import":
        import_model(open_hugging_face(source), target, ImportOptions(), progress)
    else:
        export_model(open_megatron(source), target, ExportOptions(), None, progress)


@pytest.mark.parametrize("target", [".", "..", "a/.."])
def test_a_target_without_a_name_is_resolved(
    direction: str, source: Path, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "a").mkdir(parents=True)
    (tmp_path / "here" / "precious").write_text("mine")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ConversionError, match="exists"):
        run(direction, source, Path(target))
    assert files(tmp_path) == {"here/precious": b"mine"}

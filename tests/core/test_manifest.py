"""The manifest: changes that affect the digest, changes that do not, and refused manifests."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.core.manifest import MANIFEST, ArtifactError, read_manifest, verify, write_manifest

NAMES = st.text(st.characters(categories=["L", "N"], include_characters=" .-_"), min_size=1, max_size=12).filter(
    lambda name: name.strip(".") and name.casefold() != "record" and not name.startswith(MANIFEST)
)
FILES = st.dictionaries(NAMES, st.binary(max_size=64), min_size=1, max_size=5)


def seal(directory: Path, files: dict[str, bytes], spec: dict[str, object] | None = None) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return write_manifest(directory, "toy", {"lines": 1}, spec or {}, {"parent": "d0"}).digest


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    seal(tmp_path, {"a.txt": b"one", "deep/b.txt": b"two"})
    return tmp_path


# The content of a digest


@given(FILES)
def test_the_same_files_have_the_same_digest_wherever_they_are(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        assert seal(Path(one), files) == seal(Path(other), dict(reversed(files.items())), spec={"seed": 1})


@given(FILES, FILES)
def test_other_files_have_another_digest(files: dict[str, bytes], others: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        assert (seal(Path(one), files) == seal(Path(other), others)) == (files == others)


def test_content_does_not_move_between_names_unseen(tmp_path: Path) -> None:
    assert seal(tmp_path / "1", {"ab": b"c"}) != seal(tmp_path / "2", {"a": b"bc"})


def test_the_record_is_not_part_of_the_digest(tmp_path: Path) -> None:
    plain = seal(tmp_path / "plain", {"a": b"1"})
    assert seal(tmp_path / "recorded", {"a": b"1", "record/metrics.jsonl": b"{}"}) == plain


@pytest.mark.parametrize("name", ["deep/record/b", "deep/manifest.json"])
def test_only_what_is_at_the_top_is_left_out(tmp_path: Path, name: str) -> None:
    plain = seal(tmp_path / "plain", {"a": b"1"})
    assert seal(tmp_path / "deep", {"a": b"1", name: b"2"}) != plain


def test_sealing_again_changes_nothing(sealed: Path) -> None:
    before = read_manifest(sealed)
    assert write_manifest(sealed, "toy", before.facts, before.spec, before.parents) == before


# The content of a manifest


def test_what_is_written_is_read(sealed: Path) -> None:
    manifest = verify(sealed)
    assert (manifest.kind, manifest.facts, manifest.parents) == ("toy", {"lines": 1}, {"parent": "d0"})
    assert sorted(manifest.files) == ["a.txt", "deep/b.txt"]
    assert manifest.files["a.txt"].size == 3
    assert "torch" in manifest.versions


def test_the_manifest_is_written_last_and_at_once(sealed: Path) -> None:
    written = (sealed / MANIFEST).stat().st_mtime_ns
    assert all(path.stat().st_mtime_ns <= written for path in sealed.rglob("*.txt"))
    assert not list(sealed.glob("*.partial"))


# Refused manifests


@given(FILES, st.data())
def test_any_change_is_found_and_named(files: dict[str, bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        digest = seal(directory, files)
        victim = data.draw(st.sampled_from(sorted(files)))
        path, content = directory / victim, files[victim]
        change = data.draw(st.sampled_from(["flip", "cut", "grow", "remove", "rename", "add"]))
        if change in ("flip", "cut") and not content:
            change = "grow"
        place = data.draw(st.integers(0, max(len(content) - 1, 0)))
        if change == "flip":
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        elif change == "cut":
            path.write_bytes(content[:place])
        elif change == "grow":
            path.write_bytes(content + b"\0")
        elif change == "remove":
            path.unlink()
        elif change == "rename":
            path.rename(directory / (victim + "~"))
        else:
            victim = "stray~"
            (directory / victim).touch()
        with pytest.raises(ArtifactError) as refused:
            verify(directory)
        assert victim in str(refused.value)
        assert f"toy {digest[:12]}" in str(refused.value)


def test_a_changed_record_is_not_a_changed_artifact(sealed: Path) -> None:
    (sealed / "record").mkdir()
    (sealed / "record" / "samples.txt").write_text("later")
    verify(sealed)


def test_every_damaged_file_is_named_at_once(sealed: Path) -> None:
    (sealed / "a.txt").write_bytes(b"0ne")
    (sealed / "deep" / "b.txt").unlink()
    with pytest.raises(ArtifactError, match=r"deep/b\.txt is missing; a\.txt was changed"):
        verify(sealed)


def test_another_artifact_than_the_one_asked_for_is_refused(sealed: Path) -> None:
    with pytest.raises(ArtifactError, match="another artifact than expected"):
        verify(sealed, "0" * 64)


def test_a_manifest_that_was_made_to_fit_is_refused(sealed: Path) -> None:
    (sealed / "a.txt").write_bytes(b"0ne")
    raw = json.loads((sealed / MANIFEST).read_text())
    other = sealed.with_name("other")
    seal(other, {"a.txt": b"0ne"})
    raw["files"]["a.txt"] = json.loads((other / MANIFEST).read_text())["files"]["a.txt"]
    (sealed / MANIFEST).write_text(json.dumps(raw))
    with pytest.raises(ArtifactError, match="file list was changed"):
        verify(sealed)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"files": {}}', '{"files": {"a": 1}}', '{"files": 1}'])
def test_a_broken_manifest_is_not_an_artifact(sealed: Path, text: str) -> None:
    (sealed / MANIFEST).write_text(text)
    with pytest.raises(ArtifactError, match="not a manifest"):
        read_manifest(sealed)


def test_a_directory_without_a_manifest_is_not_an_artifact(sealed: Path) -> None:
    (sealed / MANIFEST).rename(sealed / (MANIFEST + ".partial"))
    with pytest.raises(ArtifactError, match="the artifact is incomplete"):
        verify(sealed)
    shutil.rmtree(sealed)
    with pytest.raises(ArtifactError, match="the artifact is incomplete"):
        verify(sealed)

"""Between a stop and the next start any file of an unfinished conversion is damaged in any way: the result is that of
an undisturbed conversion, or, without a valid header of the journal, the folder is left alone. BATON_FUZZ: examples of
the long form."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.convert.journal import JOURNAL
from tasks.models.errors import ConversionError
from tests.convert.models import make
from tests.convert.test_bad_input import assert_same_folders
from tests.convert.test_resume import convert, stop
from tests.convert.test_round_trip import to_megatron
from tests.convert.test_target import files

ANY = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each direction, an undisturbed conversion and one that was interrupted early or at its end."""
    root = tmp_path_factory.mktemp("stopped")
    make("qwen3", root / "theirs", torch.bfloat16)
    to_megatron(root / "theirs", root / "ours")
    for direction in ("import", "export"):
        source = root / ("theirs" if direction == "import" else "ours")
        convert(direction, source, root / direction)
        for weights in (8, 26):
            stop(direction, source, root / f"{direction}-{weights}", weights)
    return root


def damage(data: st.DataObject, folder: Path) -> bytes | None:
    """Damage one file; returns a description."""
    path = folder / data.draw(st.sampled_from(sorted(files(folder))), "file")
    content = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(["delete", "cut off", "flip", "lengthen", "zeros"]), "damage")
    at = data.draw(st.integers(0, max(0, len(content) - 1)), "at")
    if kind == "delete":
        path.unlink()
        return None
    if kind == "cut off":
        del content[at:]
    elif kind == "lengthen":
        content += data.draw(st.binary(min_size=1, max_size=100), "more")
    elif kind == "zeros":
        content[at : at + 4096] = bytes(len(content[at : at + 4096]))
    elif content:
        content[at] ^= 1 << data.draw(st.integers(0, 7), "bit")
    path.write_bytes(content)
    return bytes(content)


def check(data: st.DataObject, stopped: Path) -> None:
    direction = data.draw(st.sampled_from(["import", "export"]), "direction")
    source = stopped / ("theirs" if direction == "import" else "ours")
    target = stopped / "target"
    partial = stopped / "target.partial"
    for place in (target, partial):
        shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(stopped / f"{direction}-{data.draw(st.sampled_from([8, 26]), 'weights')}.partial", partial)
    header = (partial / JOURNAL).read_bytes().split(b"\n")[0]
    for _ in range(data.draw(st.integers(1, 3), "damages")):
        damage(data, partial)
    if not (partial / JOURNAL).exists() or (partial / JOURNAL).read_bytes().split(b"\n")[0] != header:
        before = files(partial)
        with pytest.raises(ConversionError, match="is not an unfinished conversion"):
            convert(direction, source, target)
        assert {name: files(partial)[name] for name in before} == before
        assert not target.exists()
        return
    convert(direction, source, target)
    assert_same_folders(target, stopped / direction)
    assert not partial.exists()


@settings(ANY, max_examples=30)
@given(data=st.data())
def test_damage_between_two_starts(data: st.DataObject, stopped: Path) -> None:
    check(data, stopped)


@pytest.mark.fuzz
@settings(ANY, max_examples=int(os.environ.get("BATON_FUZZ", "500")))
@given(data=st.data())
def test_damage_between_two_starts_at_length(data: st.DataObject, stopped: Path) -> None:
    check(data, stopped)

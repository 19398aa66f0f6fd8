"""Named sources in a blend: shares by weight or size, and the limit of epochs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.pretrain import megatron  # noqa: F401 - makes megatron.core fit this machine, so it comes first
from baton.tasks.pretrain.batches import build_datasets
from baton.tasks.pretrain.mixture import SourceShare, parts_of
from tests.pretrain.alone import alone
from tests.pretrain.test_data import of_one_token, rows
from tests.pretrain.tiny import VOCABULARY, tiny_spec


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    with alone():
        yield


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two sources: `books` consists of token 1, `web` of token 2 and is three times as large."""
    whole = tmp_path / "shards"
    for token, (name, documents) in enumerate({"books": 10, "web": 30}.items(), start=1):
        one = of_one_token(tmp_path / name, token, documents)
        whole.mkdir(exist_ok=True)
        for kind in ("bin", "idx"):
            shutil.copy(one / f"train.{kind}", whole / f"train-{name}.{kind}")
            shutil.copy(one / f"held_out.{kind}", whole / f"held_out.{kind}")
    each = {name: read_manifest(tmp_path / name).facts for name in ("books", "web")}
    sources = {name: facts["tokens"] for name, facts in each.items()}
    write_manifest(whole, "tokenized_corpus", each["web"] | {"tokens": sum(sources.values()), "sources": sources})
    return whole


def test_sources_are_blended_by_size_unless_they_have_weights(shards: Path) -> None:
    facts = read_manifest(shards).facts
    by_size = parts_of({shards: facts}, [1.0], {})
    assert [part.source for part in by_size] == ["books", "web"]
    assert [part.share for part in by_size] == [facts["sources"][name] / facts["tokens"] for name in ("books", "web")]
    mixture = {"books": SourceShare(weight=3), "web": SourceShare(weight=1)}
    assert [part.share for part in parts_of({shards: facts}, [1.0], mixture)] == [0.75, 0.25]
    beside = parts_of({shards: facts, Path("more"): {"tokens": 5}}, [2.0, 2.0], mixture)
    assert [part.share for part in beside] == [0.375, 0.125, 0.5]


def test_megatron_draws_from_the_sources_by_their_weights(shards: Path, tmp_path: Path) -> None:
    spec = tiny_spec(mixture={"books": {"weight": 0.75}, "web": {"weight": 0.25}})
    dataset, _ = build_datasets(spec, [shards], VOCABULARY, tmp_path / "index")
    drawn = [row[0] for row in rows(dataset)]
    assert drawn.count(1) == 18
    assert drawn.count(2) == 6


def test_the_limit_of_epochs_is_no_part_of_what_a_training_is() -> None:
    """With a higher limit, a run continues from the checkpoints; a lower one does not refuse a finished run, as
    documented for the field."""
    strict, loose = (tiny_spec(mixture={"books": {"weight": 1.0, "epochs": limit}}).identity() for limit in (2, 4))
    assert strict == loose


def test_more_epochs_than_allowed_are_refused_before_training(shards: Path, tmp_path: Path) -> None:
    spec = tiny_spec(steps=600, mixture={"books": {"weight": 0.9, "epochs": 2}, "web": {"weight": 0.1}})
    with pytest.raises(StageError, match=r"corpus\.sources\.books: its share, 90\.0% of .* epochs allows 2"):
        build_datasets(spec, [shards], VOCABULARY, tmp_path / "index")


def test_a_source_in_several_files_is_the_same_mixture(tmp_path: Path) -> None:
    """One data set has files of 1,000 and 3,000 tokens; they are drawn by size, and repeated equally often."""
    whole = tmp_path / "whole"
    whole.mkdir()
    for number, documents in enumerate((10, 30)):
        one = of_one_token(tmp_path / f"{number}", number + 1, documents)
        for kind in ("bin", "idx"):
            shutil.copy(one / f"train.{kind}", whole / f"train-{number:05}.{kind}")
            shutil.copy(one / f"held_out.{kind}", whole / f"held_out.{kind}")
    facts = read_manifest(one).facts | {"tokens": 4000, "prefixes": {"train-00000": 1000, "train-00001": 3000}}
    write_manifest(whole, "tokenized_corpus", facts)

    (part,) = parts_of({whole: facts}, [8.0], {})

    assert (part.share, part.tokens, part.epochs(8000)) == (1.0, 4000, 2.0)
    assert part.blend() == [(whole / "train-00000", 2.0), (whole / "train-00001", 6.0)]
    dataset, _ = build_datasets(tiny_spec(), [whole], VOCABULARY, tmp_path / "index")
    drawn = [row[0] for row in rows(dataset)]
    assert drawn.count(1) * 3 == drawn.count(2) == 18


def test_named_sources_have_files_of_their_own(tmp_path: Path) -> None:
    facts = {"tokens": 60, "sources": {"a": 40, "a_b": 20}, "prefixes": {"train-a-00000": 30, "train-a-00001": 10}}
    mixture = {"a": SourceShare(weight=1), "a_b": SourceShare(weight=1)}
    blends = [part.blend() for part in parts_of({tmp_path: facts}, [1.0], mixture)]
    assert blends == [
        [(tmp_path / "train-a-00000", 0.375), (tmp_path / "train-a-00001", 0.125)],
        [(tmp_path / "train-a_b", 0.5)],
    ]

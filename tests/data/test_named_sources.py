"""A corpus of several named sources, which are separate in the train split and together in the held-out split."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.job import StageError
from baton.tasks.data.corpus import work
from baton.tasks.data.documents import documents_in, read_documents, row_groups
from baton.tasks.data.spec import CorpusSpec
from tests.data.by_hand import digest, facts, new_job, run

SIZES = {"web": 60, "books": 20}


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, dict[str, Any]]:
    for name, size in SIZES.items():
        lines = [json.dumps({"text": f"{name} {number}"}) for number in range(size)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return {name: {"kind": "jsonl", "path": str(tmp_path / f"{name}.jsonl")} for name in SIZES}


def prepared(job_dir: Path, sources: dict[str, Any]) -> Path:
    job = new_job(job_dir, "corpus", {"sources": sources, "held_out": 0.3})
    work(job)
    return job.output


def test_each_source_has_its_own_files_and_counts(sources: dict[str, Any], tmp_path: Path) -> None:
    corpus = prepared(tmp_path / "job", sources)
    of_sources = facts(corpus)["sources"]
    assert of_sources.keys() == {"web", "books"}
    for name, size in SIZES.items():
        train = [item for group in row_groups(corpus, "train", name) for item in documents_in(group.read())]
        assert {item.text.split()[0] for item in train} == {name}
        assert all(item.source.startswith(f"{name}/{name}.jsonl#") for item in train)
        assert of_sources[name]["documents"] == len(train)
        assert of_sources[name]["bytes"] == sum(len(item.text) for item in train)
        assert of_sources[name]["documents"] + of_sources[name]["held_out_documents"] == size
    assert facts(corpus)["documents"] == sum(counts["documents"] for counts in of_sources.values())
    assert len(list(read_documents(corpus, "train"))) == facts(corpus)["documents"]


def test_any_first_part_of_the_held_out_split_represents_all_sources(sources: dict[str, Any], tmp_path: Path) -> None:
    corpus = prepared(tmp_path / "job", sources)
    held_out = [item.text.split()[0] for item in read_documents(corpus, "held_out")]
    whole = held_out.count("books") / len(held_out)
    half = held_out[: len(held_out) // 2]
    assert abs(half.count("books") / len(half) - whole) <= 1 / len(half)


def test_a_text_in_two_sources_counts_for_the_first_by_name(sources: dict[str, Any], tmp_path: Path) -> None:
    with (tmp_path / "web.jsonl").open("a") as web:
        web.write("\n" + json.dumps({"text": "books 7"}))
    found = facts(prepared(tmp_path / "job", sources))
    assert found["duplicates"] == 1
    assert found["sources"]["books"]["documents"] + found["sources"]["books"]["held_out_documents"] == 20


def test_neither_the_order_nor_the_weights_in_the_recipe_change_the_corpus(
    sources: dict[str, Any], tmp_path: Path
) -> None:
    one = prepared(tmp_path / "one", sources)
    weighted = {name: sources[name] | {"weight": 0.5, "epochs": 3} for name in ("books", "web")}
    assert digest(prepared(tmp_path / "two", weighted)) == digest(one)


def test_weights_are_in_no_cache_key(sources: dict[str, Any]) -> None:
    plain = CorpusSpec.model_validate({"sources": sources})
    weighted = CorpusSpec.model_validate({"sources": {name: sources[name] | {"weight": 1} for name in sources}})
    assert plain.identity() == weighted.identity()
    what, how = weighted.split_options()
    assert what == plain
    assert what.with_options(how) == weighted


def test_a_spec_without_named_sources_has_the_identity_that_it_had_before_there_were_any() -> None:
    assert CorpusSpec().identity() == {"source": {"kind": "stdlib"}, "held_out": 0.05, "state": None}


def test_only_a_source_that_was_written_counts_as_one(sources: dict[str, Any]) -> None:
    spec = CorpusSpec.model_validate({"sources": sources})
    assert CorpusSpec.model_validate(spec.model_dump(mode="json")).problems() == []
    both = CorpusSpec.model_validate({"sources": sources, "source": {"kind": "stdlib"}})
    assert CorpusSpec.model_validate_json(both.model_dump_json()).problems() != []


def test_the_number_of_workers_is_in_no_cache_key_and_the_size_of_partitions_is() -> None:
    def identity(**partitions: float) -> dict[str, Any]:
        return CorpusSpec.model_validate({"partitions": partitions}).identity()

    assert identity(concurrency=3) == CorpusSpec().identity()
    assert identity(size_mb=8.0, concurrency=3) == identity(size_mb=8.0) != CorpusSpec().identity()


def test_a_source_of_which_nothing_is_left_is_named(sources: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "web.jsonl").write_text(json.dumps({"text": "books 7"}))
    with pytest.raises(StageError, match=r"sources\.web: none of its documents is in the train split"):
        prepared(tmp_path / "job", sources)


@pytest.mark.parametrize(
    ("spec", "path", "allowed"),
    [
        ({"source": {"kind": "files", "path": "."}, "sources": {"a": {"kind": "stdlib"}}}, "source", "move it into"),
        ({"source": {"kind": "stdlib"}, "sources": {"a": {"kind": "stdlib"}}}, "source", "move it into"),
        ({"source": {"kind": "stdlib", "weight": 1}}, "source.weight", "only for sources with a name"),
        (
            {"sources": {"a": {"kind": "stdlib", "weight": 1}, "b": {"kind": "files", "path": "."}}},
            "sources.b.weight",
            "none for all",
        ),
    ],
)
def test_what_does_not_fit_together_is_a_problem(spec: dict[str, Any], path: str, allowed: str) -> None:
    (problem,) = [found for found in CorpusSpec.model_validate(spec).problems() if found.path == path]
    assert allowed in problem.allowed


def test_a_missing_file_is_found_under_its_source(tmp_path: Path) -> None:
    spec = CorpusSpec.model_validate({"sources": {"web": {"kind": "jsonl", "path": str(tmp_path / "no")}}})
    (problem,) = spec.missing()
    assert problem.path == "sources.web.path"


def test_a_change_in_one_source_changes_the_state(sources: dict[str, Any], tmp_path: Path) -> None:
    spec = CorpusSpec.model_validate({"sources": sources})
    before = spec.pinned()
    assert before == spec.pinned()
    (tmp_path / "web.jsonl").write_text(json.dumps({"text": "changed"}))
    assert spec.pinned().identity() != before.identity()


def test_shards_have_a_data_set_for_each_source(sources: dict[str, Any], tokenizer: Path, tmp_path: Path) -> None:
    corpus = prepared(tmp_path / "job", sources)
    shards = run(new_job(tmp_path / "shards", "shards", {}, corpus=corpus, tokenizer=tokenizer))
    names = {path.name for path in shards.iterdir() if path.is_file()} - {"manifest.json"}
    assert names == {f"{name}.{kind}" for name in ("train-web", "train-books", "held_out") for kind in ("bin", "idx")}
    tokens = {name: (shards / f"train-{name}.bin").stat().st_size // 2 for name in SIZES}
    assert facts(shards)["sources"] == tokens
    assert facts(shards)["tokens"] == sum(tokens.values())

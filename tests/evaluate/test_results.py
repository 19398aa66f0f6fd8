"""Reading an evaluation in other stages."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.evaluate.results import Results, difference, read_results
from tests.promote.made import metric, seal

Lines = list[dict[str, Any]]


def results(directory: Path, documents: Lines, completions: Lines, metrics: dict[str, Any] | None = None) -> Results:
    facts = {"label": "base", "model_digest": "m" * 64, "metrics": metrics or {}}
    files = {"documents.jsonl": documents, "completions.jsonl": completions}
    text = {name: "".join(json.dumps(line) + "\n" for line in lines) for name, lines in files.items()}
    return read_results(seal(directory, EvalReport, facts, text))


def test_the_items_of_bits_are_documents_by_their_sets(tmp_path: Path) -> None:
    sets = ("corpus", "more.0", "more.1")
    found = results(tmp_path / "a", [{"set": each, "id": "1", "bits": 8.0, "bytes": 4} for each in sets], [])
    assert found.names() == ["old.bits_per_byte", "new.bits_per_byte", "all.bits_per_byte"]
    assert [len(found.items(name)) for name in found.names()] == [1, 2, 3]
    assert found.items("bits_per_byte") == {("corpus", "1"): (8.0, 4.0)}


def test_the_items_of_rewards_are_prompts(tmp_path: Path) -> None:
    rewards = [{"right": 1.0, "short.very": 0.5}, {"right": 0.0, "short.very": None}]
    lines = [{"evaluator": "sums", "id": "7", "rewards": each} for each in rewards]
    metrics = {f"sums.{name}": metric(0.5) for name in ("right", "short.very", "pass@2", "distinct")}
    found = results(tmp_path / "a", [], lines, metrics=metrics)
    assert set(found.names()) == {"sums.right", "sums.short.very", "sums.pass@2"}  # `distinct` has no items
    assert found.items("sums.right") == {("sums", "7"): (0.5, 1.0)}
    assert found.items("sums.short.very") == {("sums", "7"): (0.5, 1.0)}
    assert found.items("sums.pass@2") == {("sums", "7"): (1.0, 1.0)}


def test_a_difference_of_bits_is_weighted_by_bytes(tmp_path: Path) -> None:
    sizes = (1, 99)
    before, after = (
        results(
            tmp_path / name,
            [{"set": "corpus", "id": str(size), "bits": size * level, "bytes": size} for size in sizes],
            [],
            metrics={"bits_per_byte": metric(level, higher_is_better=False)},
        )
        for name, level in (("a", 2.0), ("b", 1.5))
    )
    found = difference(before, after, "bits_per_byte")
    assert found.value == pytest.approx(-0.5)
    assert found.standard_error == pytest.approx(0)

"""The export, validated against OpenLineage's schemas (tests/lineage/openlineage, from its specification)."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from baton.infra.lineage.api import Lineage
from tests.lineage.recorded import Stored

SCHEMAS = [json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "openlineage").glob("*.json"))]
REGISTRY: Registry[Any] = Registry().with_resources([(each["$id"], Resource.from_contents(each)) for each in SCHEMAS])


def check(value: Any, schema: str) -> None:
    """Validate against the part of a schema that a reference points to."""
    Draft202012Validator({"$ref": schema}, registry=REGISTRY, format_checker=FormatChecker()).validate(value)


@pytest.fixture
def events(lineage: Lineage) -> list[dict[str, Any]]:
    return lineage.export()


def test_every_event_and_every_facet_is_valid(events: list[dict[str, Any]]) -> None:
    assert events
    for event in events:
        check(event, event["schemaURL"])
        datasets = [*event["inputs"], *event["outputs"]]
        for facets in (event["run"]["facets"], *(dataset["facets"] for dataset in datasets)):
            for facet in facets.values():
                check(facet, facet["_schemaURL"])


def test_the_check_can_fail(events: list[dict[str, Any]]) -> None:
    events[0]["run"]["runId"] = 5
    with pytest.raises(Exception, match="5 is not of type"):
        check(events[0], events[0]["schemaURL"])


def test_a_run_starts_and_ends_as_it_did(events: list[dict[str, Any]], store: Stored) -> None:
    by_run: dict[str, list[str]] = {}
    for event in events:
        by_run.setdefault(event["run"]["runId"], []).append(event["eventType"])
    ends = [types[1:] for types in by_run.values() if types[0] == "START"]
    assert len(ends) == len(by_run)
    assert sorted(ends).count(["FAIL"]) == 1
    assert [["COMPLETE"]] * (len(ends) - 1) == [end for end in ends if end != ["FAIL"]]
    (failed,) = [event for event in events if event["eventType"] == "FAIL"]
    assert "the disk is full" in failed["run"]["facets"]["errorMessage"]["message"]


def test_the_history_of_an_artifact_includes_its_data(lineage: Lineage, store: Stored) -> None:
    events = lineage.export(digest=store.digests["sft"])
    names = [event["job"]["name"] for event in events if event["eventType"] == "COMPLETE"]
    assert names == [f"laptop.{title}" for title in ("corpus", "tokenizer", "shards", "pretrain", "convert", "sft")]
    last = events[-1]
    assert last["outputs"][0]["name"] == store.digests["sft"]
    assert {each["name"] for each in last["inputs"]} == {store.digests["convert"], store.digests["corpus"]}

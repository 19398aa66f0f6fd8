"""One search over executions, registered models and artifacts."""

import html
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from baton.infra.lineage.app import alone
from baton.infra.tracking.annotations import annotations
from baton.infra.tracking.execution import begin_execution, close_execution, end_execution
from tests.lineage.recorded import HOSTILE, LAPTOP, Stored, deliver, record_hostile
from tests.lineage.test_pages import text

SEARCH = "/lineage/search"


def found(page: TestClient, query: str) -> dict[str, Any]:
    answer = page.get(f"{SEARCH}.json", params={"q": query})
    assert answer.status_code == 200
    result: dict[str, Any] = answer.json()
    return result


def executions(page: TestClient, query: str) -> set[str]:
    return {row["id"] for row in found(page, query)["executions"]}


def artifacts(page: TestClient, query: str) -> set[str]:
    return {row["digest"] for row in found(page, query)["artifacts"]}


def test_a_name_finds_executions_models_and_artifacts_in_groups(page: TestClient, store: Stored) -> None:
    result = found(page, "sft")
    assert {row["id"] for row in result["executions"]} == {store.first, store.second}
    assert store.digests["sft"] in {row["digest"] for row in result["artifacts"]}
    assert store.digests["corpus"] not in {row["digest"] for row in result["artifacts"]}
    (model,) = result["models"]
    assert (model["version"], model["aliases"], model["digest"]) == (2, ["champion"], store.digests["sft"])


def test_a_registered_model_is_found_by_its_name_and_its_alias(page: TestClient) -> None:
    assert {row["version"] for row in found(page, "baton-laptop")["models"]} == {1, 2}
    assert {row["version"] for row in found(page, "baton-laptop champion")["models"]} == {2}


def test_a_field_finds_the_artifacts_of_the_runs_that_had_it(page: TestClient, store: Stored) -> None:
    assert artifacts(page, "pretrain.optimizer.lr=0.001") == {store.others["pretrain"]}
    assert executions(page, "pretrain.optimizer.lr=0.001") == {store.second}


def test_all_words_have_to_match(page: TestClient, store: Stored) -> None:
    assert artifacts(page, "pretrain again") == {store.others["pretrain"]}
    assert executions(page, "pretrain again") == {store.second}
    assert found(page, "pretrain nothing-like-it")["matching"] == {"executions": 0, "models": 0, "artifacts": 0}


def test_the_first_letters_of_a_digest_find_it_and_what_used_it(page: TestClient, store: Stored) -> None:
    assert store.digests["corpus"] in artifacts(page, store.digests["corpus"][:4])
    assert executions(page, store.digests["corpus"][:5]) == {store.first, store.second}
    assert executions(page, store.others["pretrain"][:12]) == {store.second}


def test_a_file_of_an_artifact_finds_it(page: TestClient, store: Stored) -> None:
    assert store.digests["sft"] in artifacts(page, "weights.bin")
    assert not artifacts(page, "no-such-file.bin")


def test_a_value_of_a_recipe_is_found_as_text(page: TestClient, store: Stored) -> None:
    assert executions(page, "stdlib") == {store.first}  # the second took its corpus from the cache


def test_the_page_links_to_what_it_found(page: TestClient, store: Stored) -> None:
    answer = page.get(SEARCH, params={"q": "laptop sft"})
    assert answer.status_code == 200 and 'value="laptop sft"' in answer.text
    assert f"/lineage/executions/{store.first}" in answer.text
    assert f"/lineage/artifacts/{store.digests['sft']}" in answer.text
    assert "Nothing matches" in page.get(SEARCH, params={"q": "nothing-like-it"}).text
    assert page.get(SEARCH).status_code == 200


@pytest.mark.parametrize("query", ["' OR '1'='1", "%", "\\", "=", "=1", "a=' OR 1=1 --", "x'; DROP TABLE runs; --"])
def test_no_query_is_part_of_the_sql(page: TestClient, query: str) -> None:
    assert found(page, query)["matching"]["executions"] == 0
    assert executions(page, "laptop")


def test_names_are_text_on_the_page(home: Any) -> None:
    record_hostile()
    answer = TestClient(alone()).get(SEARCH, params={"q": "onerror '\"><img"})
    assert HOSTILE not in answer.text and HOSTILE in html.unescape(answer.text)
    assert '"><img' not in answer.text


def test_a_person_a_note_and_a_tag_find_their_execution(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.infra.tracking.execution.user", lambda: "Ada Lovelace (ada)")
    for name, value in annotations("a larger learning rate", ["sweep=LR-1", "keep=yes"]).items():
        monkeypatch.setenv(name, value)
    id = begin_execution("laptop", LAPTOP)
    end_execution()
    deliver(id)
    close_execution()
    page = TestClient(alone())
    for query in ("lovelace", "larger", "sweep=lr-1", "keep", "LR-1 ada"):
        assert executions(page, query) == {id}, query
    assert executions(page, "sweep=lr-2") == executions(page, "babbage") == set()
    (row,) = page.get("/lineage/executions.json").json()["executions"]
    assert (row["user"], row["note"]) == ("Ada Lovelace (ada)", "a larger learning rate")
    assert row["tags"] == {"keep": "yes", "sweep": "LR-1"}
    for address in ("/lineage/executions", f"/lineage/executions/{id}"):
        shown = text(page.get(address).text)
        assert "Ada Lovelace (ada)" in shown and "a larger learning rate" in shown and "sweep=LR-1" in shown
    assert "sweep" not in json.dumps(page.get(f"/lineage/executions/{id}.json").json()["recipe"])

"""The pages as a browser without JavaScript has them, and their JSON twins."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from infra.lineage.app import alone, with_mlflow
from infra.lineage.files import look
from infra.tracking.execution import begin_execution, end_execution, flush
from infra.tracking.record import tracked
from tests.lineage.recorded import HOSTILE, LAPTOP, LONG, PATHS, UNICODE, Stored, deliver, record_hostile

ROOT = "/lineage"


def text(answer: str) -> str:
    """What a person reads."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer)).split())


def addresses(store: Stored, page: TestClient) -> list[str]:
    sft = page.get(f"{ROOT}/artifacts/{store.digests['sft']}.json").json()
    return [
        "/executions",
        "/executions?q=laptop&state=FAILED",
        f"/executions/{store.first}",
        f"/executions/{store.second}",
        f"/artifacts/{store.digests['corpus']}",
        f"/artifacts/{store.digests['sft']}?to={store.digests['corpus']}",
        f"/runs/{sft['makers'][0]['id']}",
        "/compare",
        f"/compare?a={store.digests['sft']}&b={store.others['convert']}",
        "/models",
    ]


def test_every_page_is_there_and_has_a_json_twin(page: TestClient, store: Stored) -> None:
    for address in addresses(store, page):
        answer = page.get(ROOT + address)
        assert answer.status_code == 200, address
        path, _, query = address.partition("?")
        twin = page.get(f"{ROOT}{path}.json?{query}")
        assert twin.status_code == 200
        assert answer.text.count(twin.json()["title"]) > 0
        assert f'href="{html.escape(f"{ROOT}{path}.json")}' in answer.text


@pytest.mark.parametrize("address", ["/lineage", "/lineage/"])
def test_the_address_that_people_type_is_the_list_of_executions(page: TestClient, address: str) -> None:
    answer = page.get(address)
    assert answer.status_code == 200
    assert answer.url.path == "/lineage/executions"


def test_every_link_on_every_page_leads_somewhere(page: TestClient, store: Stored) -> None:
    seen: set[str] = set()
    for address in addresses(store, page):
        for link in re.findall(r'(?:href|src|action)="([^"]+)"', page.get(ROOT + address).text):
            link = html.unescape(link).partition("#")[0]
            if link.startswith("?"):
                link = ROOT + address.partition("?")[0] + link
            if link and link not in seen and not link.startswith(("http:", "https:")):
                seen.add(link)
                assert page.get(link).status_code == 200, f"{link} on {address}"
    assert len(seen) > 30


def test_the_list_is_searched_and_filtered(page: TestClient, store: Stored) -> None:
    def found(query: str) -> set[str]:
        return {each["id"] for each in page.get(f"{ROOT}/executions.json?{query}").json()["executions"]}

    both = {store.first, store.second}
    assert found("") == found("q=LAPTOP") == both
    assert found("state=FAILED") == found("q=again") == found("q=pretrain.optimizer.lr=0.001") == {store.second}
    assert found(f"q={store.first}") == {store.first}
    assert found("q=nothing-like-it") == found("q=laptop+nothing") == set()
    assert found("page=99") == found("page=x") == both


def test_a_digest_in_the_search_opens_its_artifact(page: TestClient, store: Stored) -> None:
    answer = page.get(f"{ROOT}/search?q={store.digests['sft'][:12]}")
    assert answer.url.path == f"{ROOT}/artifacts/{store.digests['sft']}"
    assert page.get(f"{ROOT}/search?q=laptop").url.path == f"{ROOT}/executions"


def test_an_execution_of_a_cluster_links_to_flyte_s_page(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its pods, started by a schedule, did not know where that is."""
    for name, value in {"ID": "f0", "PROJECT": "llm", "DOMAIN": "production"}.items():
        monkeypatch.setenv(f"FLYTE_INTERNAL_EXECUTION_{name}", value)
    begin_execution("nightly", {})
    end_execution()
    monkeypatch.setenv("FLYTE_PLATFORM_CONSOLE_ENDPOINT", "https://flyte.example")
    shown = TestClient(alone()).get("/lineage/executions/llm-production-f0").text
    assert 'href="https://flyte.example/console/projects/llm/domains/production/executions/f0"' in shown


def test_the_recipe_comes_back_as_it_was(page: TestClient, store: Stored) -> None:
    assert page.get(f"{ROOT}/executions/{store.first}/recipe.json").json() == LAPTOP


def test_an_artifact_says_how_to_make_it_again(page: TestClient, store: Stored) -> None:
    said = text(page.get(f"{ROOT}/artifacts/{store.digests['sft']}").text)
    assert f"curl -fsS -o recipe.json http://testserver/lineage/executions/{store.first}/recipe.json" in said
    assert "pyflyte run workflows/pretrain_to_rl.py --recipe recipe.json" in said
    assert "python -m tasks.sft" in said
    commit = page.get(f"{ROOT}/artifacts/{store.digests['sft']}.json").json()["code"]["commit"]
    assert f"git checkout {commit}" in said


def test_an_artifact_shows_its_files_scores_samples_and_version(page: TestClient, store: Stored) -> None:
    found = page.get(f"{ROOT}/artifacts/{store.digests['sft']}.json").json()
    assert [file["name"] for file in found["files"]] == ["weights.bin"]
    assert found["findings"][0]["facts"]["sums.right"] == 0.25
    assert found["records"]["record/samples.json"][0]["source"] == "a.py"
    assert found["versions"][0]["aliases"] == ["champion"]
    assert found["state"] == "here"


def test_a_run_shows_curves_log_and_machine(page: TestClient, store: Stored) -> None:
    sft = page.get(f"{ROOT}/artifacts/{store.digests['sft']}.json").json()
    found = page.get(f"{ROOT}/runs/{sft['makers'][0]['id']}.json").json()
    assert len(found["curves"]["loss"]) == 20
    assert found["machine"]["cores"]
    assert "step 1" in found["log"] and "secret" not in found["log"]


def test_the_way_between_two_is_marked(page: TestClient, store: Stored) -> None:
    answer = page.get(f"{ROOT}/artifacts/{store.digests['sft']}?to={store.digests['corpus']}").text
    on = re.findall(r'<a class="artifact \w+ (?:chosen )?on"[^>]*data-node="(\w+)"', answer)
    titles = ("corpus", "tokenizer", "shards", "pretrain", "convert", "sft")
    assert set(on) == {store.digests[title] for title in titles}
    assert f'off" href="{ROOT}/artifacts/{store.digests["evaluate-sft"]}"' in answer


def test_two_models_are_compared(page: TestClient, store: Stored) -> None:
    a, b = store.digests["convert"], store.others["convert"]
    found = page.get(f"{ROOT}/compare.json?a={a}&b={b}").json()
    assert found["difference"]["config"] == [{"name": "pretrain.optimizer.lr", "a": "0.003", "b": "0.001"}]
    assert [row["name"] for row in found["metrics"]] == ["bits_per_byte", "sums.right"]
    assert "pretrain loss" in found["curves"] and "corpus loss" not in found["curves"]


def test_metrics_are_shown_in_the_units_that_the_evaluation_gave_them(page: TestClient, store: Stored) -> None:
    a, b = store.digests["convert"], store.digests["sft"]
    assert "sums.right 10.0 % 25.0 % +15.0 %" in text(page.get(f"{ROOT}/compare?a={a}&b={b}").text)
    assert "sums.right 25.0 %" in text(page.get(f"{ROOT}/artifacts/{b}").text)
    assert "sums.right" in text(page.get(f"{ROOT}/models").text) and "25.0 %" in text(page.get(f"{ROOT}/models").text)


def test_the_best_of_an_execution_is_of_the_metric_that_its_evaluations_name(page: TestClient, store: Stored) -> None:
    (first,) = [each for each in page.get(f"{ROOT}/executions.json").json()["executions"] if each["id"] == store.first]
    assert first["best"] == {"name": "sums.right", "value": 0.25, "unit": "share"}
    assert "25.0 % sums.right" in text(page.get(f"{ROOT}/executions/{store.first}").text)


def test_the_registry_shows_aliases_scores_and_origins(page: TestClient, store: Stored) -> None:
    (model,) = page.get(f"{ROOT}/models.json").json()["models"]
    newest, oldest = model["versions"]
    assert (newest["version"], newest["aliases"], newest["scores"]) == (2, ["champion"], {"sums.right": 0.25})
    assert newest["model"]["digest"] == store.digests["sft"]
    assert [origin["digest"] for origin in oldest["from"]] == [store.digests["corpus"]]
    assert (newest["outcome"], oldest["outcome"]) == ("promoted", "rolled back")
    assert "Promoted: &lt;better&gt; by 3.00 %." in page.get(f"{ROOT}/models").text


@pytest.mark.parametrize(
    "path", ["/executions/none", "/artifacts/abcdef", "/runs/none", "/nowhere", "/compare?a=zzzzzz"]
)
def test_what_is_not_there_is_said_in_both_forms(page: TestClient, path: str) -> None:
    path, _, query = path.partition("?")
    answer = page.get(f"{ROOT}{path}?{query}")
    assert answer.status_code == 404 and "All executions" in answer.text
    if path != "/nowhere":
        assert page.get(f"{ROOT}{path}.json?{query}").json()["error"]


def test_only_reading_is_possible(page: TestClient, store: Stored) -> None:
    for address in ("/executions", f"/executions/{store.first}", f"/artifacts/{store.digests['sft']}"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert page.request(method, ROOT + address).status_code == 405


def test_a_running_stage_says_how_far_it_is(home: Path, tmp_path: Path) -> None:
    id = begin_execution("running", {})
    with tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        (tmp_path / "job").mkdir()
        for done in (10, 20):
            progress = {"done": done, "total": 40, "unit": "steps", "shown": {"loss": 2.5, "tok/s": "3,131"}}
            (tmp_path / "job" / "progress.json").write_text(json.dumps(progress))
            assert flush(60)
        answer = TestClient(alone()).get(f"{ROOT}/executions/{id}")
        assert "pretrain 20 of 40 steps loss 2.5 tok/s 3,131" in text(answer.text)
        assert re.search(r"\d+ s left", text(answer.text))
        assert "data-live" in answer.text and 'http-equiv="refresh"' in answer.text
    end_execution()
    deliver(id)
    assert "data-live" not in TestClient(alone()).get(f"{ROOT}/executions/{id}").text


def test_a_page_elsewhere_cannot_read_it_by_pointing_its_own_name_here(store: Stored) -> None:
    page = TestClient(alone(hosts=("127.0.0.1",)), base_url="http://127.0.0.1:5000")
    assert page.get(f"{ROOT}/executions").status_code == 200
    assert page.get(f"{ROOT}/executions", headers={"host": "evil.example:5000"}).status_code == 400


def test_mlflow_and_baton_are_one_server(store: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", store.uri)
    server = TestClient(with_mlflow(), base_url="http://localhost")
    assert store.first in server.get(f"{ROOT}/executions").text
    assert server.get("/health").text == "OK"
    assert "In MLflow" in server.get(f"{ROOT}/executions/{store.first}").text


# Names that are meant to do harm


@pytest.fixture
def hostile(home: Path) -> tuple[TestClient, str]:
    return TestClient(alone()), record_hostile()


def test_hostile_names_are_shown_as_text(hostile: tuple[TestClient, str]) -> None:
    page, id = hostile
    found = page.get(f"{ROOT}/executions/{id}.json").json()
    pages = ["/executions", f"/executions/{id}", f"/artifacts/{'e' * 64}", f"/artifacts/{'f' * 64}", "/compare"]
    pages += [f"/runs/{run['id']}" for run in found["stages"]]
    for address in pages:
        answer = page.get(ROOT + address)
        assert answer.status_code == 200, address
        assert "<script>alert" not in answer.text and "<img" not in answer.text, address
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert HOSTILE in html.unescape(page.get(f"{ROOT}/executions").text)
    titles = {run["title"] for run in found["stages"]}
    assert UNICODE in titles and any(title.startswith(LONG[:200]) for title in titles)


def test_a_hostile_digest_breaks_no_page(hostile: tuple[TestClient, str]) -> None:
    page, id = hostile
    for address in (HOSTILE, PATHS, "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "x" * 5000, "%00", "'; DROP TABLE runs; --"):
        for kind in ("artifacts", "runs", "executions"):
            assert page.get(f"{ROOT}/{kind}/{address}").status_code in (200, 404, 405)
    assert page.get(f"{ROOT}/executions/{id}").status_code == 200


@pytest.mark.parametrize("path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "../../../../etc/passwd"])
def test_static_files_are_those_of_one_folder(page: TestClient, path: str) -> None:
    answer = page.get(f"{ROOT}/static/{path}")
    assert answer.status_code == 404 and "import" not in answer.text and "root:" not in answer.text


# Files


def test_a_file_outside_of_batons_home_is_never_looked_at(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "output"
    outside.mkdir(parents=True)
    (outside / "manifest.json").write_text(json.dumps({"digest": "d", "files": {"secret": {"size": 1}}}))
    assert look(str(outside.parent), "d").state == "elsewhere"
    (home / "jobs" / "link").mkdir(parents=True)
    (home / "jobs" / "link" / "output").symlink_to(outside)
    assert look(str(home / "jobs" / "link"), "d").state == "elsewhere"
    assert look(str(home / "jobs" / ".." / ".." / "outside"), "d").state == "elsewhere"
    inside = home / "jobs" / "one" / "output"
    shutil.copytree(outside, inside)
    assert look(str(home / "jobs" / "one"), "d").state == "here"
    (tmp_path / "config.json").write_text('{"secret": 1}')
    (inside / "config.json").symlink_to(tmp_path / "config.json")
    assert look(str(home / "jobs" / "one"), "d").records == {}


def test_an_artifact_that_was_deleted_or_replaced_is_said_to_be(home: Path) -> None:
    job = home / "jobs" / "one"
    assert look(str(job), "d").state == "gone"
    assert look(None, "d").state == "unknown"
    (job / "output").mkdir(parents=True)
    (job / "output" / "manifest.json").write_text(json.dumps({"digest": "other", "files": {}}))
    assert look(str(job), "d").state == "changed"
    (job / "output" / "manifest.json").write_text('{"digest": "d", "fi')
    assert look(str(job), "d").state == "gone"

"""The pages without JavaScript, and their JSON counterparts."""

import html
import json
import os
import re
import shutil
import time
from pathlib import Path
from urllib.parse import unquote

import pytest
from mlflow import MlflowClient
from starlette.testclient import TestClient

from baton.infra.lineage.app import alone, with_mlflow
from baton.infra.lineage.files import look
from baton.infra.lineage.reproduce import commands
from baton.infra.tracking.execution import begin_execution, end_execution, flush
from baton.infra.tracking.push import push_execution
from baton.infra.tracking.record import note_cached, tracked
from baton.infra.tracking.spool import FAILED, Execution, hold, write_execution
from tests.lineage.recorded import HOSTILE, LAPTOP, LONG, PATHS, UNICODE, Stored, deliver, record_hostile, scored

ROOT = "/lineage"


def text(answer: str) -> str:
    """Return the visible text."""
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
        f"/runs/{sft['makers'][0]['id']}?x=time&y=log",
        f"/runs/{sft['makers'][0]['id']}/log",
        f"/runs/{sft['makers'][0]['id']}/log?find=STEP",
        "/executions?sort=best&order=asc&recipe=laptop&since=2026-01-01&until=2099-12-31",
        "/models",
        "/metrics",
    ]


def test_every_page_is_there_and_has_a_json_twin(page: TestClient, store: Stored) -> None:
    for address in addresses(store, page):
        answer = page.get(ROOT + address)
        assert answer.status_code == 200, address
        path, _, query = address.partition("?")
        twin = page.get(f"{ROOT}{path}.json?{query}")
        assert twin.status_code == 200
        assert twin.json()["title"] in answer.text
        assert f'href="{html.escape(f"{ROOT}{path}.json")}' in answer.text


@pytest.mark.parametrize("address", ["/lineage", "/lineage/"])
def test_the_short_address_redirects_to_the_executions(page: TestClient, address: str) -> None:
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
    assert found("q=convert") == both and found("q=sft.steps=3") == {store.first, store.second}
    assert found("q=pretrain.steps=20") == found("q=pretrain.steps=20.0") == found("q=sources.1=b") == both
    assert found("q=pretrain.optimizer.lr=1e-3") == {store.second}  # Compare names a field of a stage like this
    assert found("q=BASE") == found("q=sft") == both  # names of models
    assert found("q=sft.steps=4") == found("q=convert.steps=3") == found("q=sources.7=b") == set()
    assert found("q=seed=1") == both and found("q=seed=true") == set()
    assert found("q=nothing-like-it") == found("q=laptop+nothing") == set()
    assert found("page=99") == found("page=x") == both


def test_a_digest_in_the_search_opens_its_artifact(page: TestClient, store: Stored) -> None:
    answer = page.get(f"{ROOT}/search?q={store.digests['sft'][:12]}")
    assert answer.url.path == f"{ROOT}/artifacts/{store.digests['sft']}"
    assert page.get(f"{ROOT}/search?q={store.first}").url.path == f"{ROOT}/executions/{store.first}"


def test_the_list_is_sorted_and_filtered_by_recipe_and_date(page: TestClient, store: Stored) -> None:
    def found(query: str) -> list[str]:
        return [each["id"] for each in page.get(f"{ROOT}/executions.json?{query}").json()["executions"]]

    assert found("") == [store.second, store.first]
    assert found("sort=started&order=asc") == found("sort=recipe&order=asc") == [store.first, store.second]
    assert found("sort=best") == [store.first, store.second]
    assert found("recipe=laptop") == [store.first]
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert len(found(f"since={today}")) == 2 and found("until=2020-01-01") == []


@pytest.mark.parametrize(
    "query", ["q=" + "x" * 60_000, "q=" + "+".join(["seed=1"] * 2000), "sort=colour", "since=yesterday", "order=up"]
)
def test_a_query_beyond_its_limits_is_refused(page: TestClient, query: str) -> None:
    answer = page.get(f"{ROOT}/executions.json?{query}")
    assert answer.status_code == 400
    assert len(answer.json()["error"]) < 300
    assert page.get(f"{ROOT}/search?{query}").status_code in (200, 400)


def test_cost_is_a_column_only_where_something_has_a_cost(page: TestClient) -> None:
    assert "Cost" not in text(page.get(f"{ROOT}/executions").text)


def test_the_settings_that_differ_from_the_defaults_are_shown_as_yaml(page: TestClient, store: Stored) -> None:
    shown = html.unescape(page.get(f"{ROOT}/executions/{store.first}").text)
    assert "name: laptop\npretrain:\n  steps: 20\n" in shown


def test_an_execution_of_a_cluster_links_to_flytes_console(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods that a schedule started and that did not know the console's address are included."""
    for name, value in {"ID": "f0", "PROJECT": "llm", "DOMAIN": "production"}.items():
        monkeypatch.setenv(f"FLYTE_INTERNAL_EXECUTION_{name}", value)
    begin_execution("nightly", {})
    end_execution()
    monkeypatch.setenv("FLYTE_PLATFORM_CONSOLE_ENDPOINT", "https://flyte.example")
    shown = TestClient(alone()).get("/lineage/executions/llm-production-f0").text
    assert 'href="https://flyte.example/console/projects/llm/domains/production/executions/f0"' in shown


def test_the_recipe_is_restored_as_it_was(page: TestClient, store: Stored) -> None:
    assert page.get(f"{ROOT}/executions/{store.first}/recipe.json").json() == LAPTOP


def test_an_artifact_has_the_commands_that_reproduce_it(page: TestClient, store: Stored) -> None:
    shown = text(page.get(f"{ROOT}/artifacts/{store.digests['sft']}").text)
    commit = page.get(f"{ROOT}/artifacts/{store.digests['sft']}.json").json()["code"]["commit"]
    assert f"git checkout {commit} " in shown
    assert ". .venv/bin/activate curl -fsS -o recipe.json " in shown
    assert f"curl -fsS -o recipe.json http://testserver/lineage/executions/{store.first}/recipe.json" in shown
    assert "pyflyte run workflows/pretrain_to_rl.py --recipe recipe.json" in shown
    assert "python -m tasks.sft" in shown


@pytest.mark.parametrize("option", ["--recipe mine.yaml", "--recipe=mine.yaml", "--recipe /home/me/workflows/a.yaml"])
def test_an_execution_is_reproduced_with_its_recorded_recipe(option: str) -> None:
    recorded = {"mlflow.source.name": f".venv/bin/pyflyte run dag.py dag {option}"}
    assert commands(recorded, "id")[-1] == "pyflyte run dag.py dag --recipe recipe.json"


@pytest.mark.parametrize("plan", ["nightly", "weekly"])
def test_a_scheduled_night_is_reproduced_with_its_recorded_recipe(plan: str) -> None:
    recorded = {"mlflow.source.name": f".venv/bin/pyflyte run /home/me/baton/workflows/launch_plans.py {plan}"}
    *_, fetched, note, command = commands(recorded, "id")
    assert fetched == "curl -fsS -o recipe.json {base}/executions/id/recipe.json"
    assert note.startswith("# continues from the generations in the registry")
    assert command == f"BATON_CONTINUOUS=recipe.json pyflyte run workflows/launch_plans.py {plan}"


@pytest.mark.parametrize(
    ("module", "task", "workflow"),
    [
        ("baton.workflows.pretrain_to_rl", "stages", "workflows/pretrain_to_rl.py pretrain_to_rl"),
        ("baton.workflows.continuous", "ingest", "workflows/continuous.py continue_training"),
        ("workflows.continuous", "refresh", "workflows/continuous.py refresh_rl"),
        ("mine.chain", "stages", "mine/chain.py WORKFLOW"),
    ],
)
@pytest.mark.parametrize(
    "first", ["/usr/local/bin/pyflyte-execute", "pyflyte-fast-execute --dest-dir /root -- pyflyte-execute"]
)
def test_an_execution_on_a_cluster_is_reproduced_as_a_local_run(
    first: str, module: str, task: str, workflow: str
) -> None:
    """The command of the first pod needs the credentials of the bucket, and would overwrite the recorded outputs."""
    pod = f"--inputs s3://data/inputs.pb --output-prefix s3://data/n0 -- task-module {module} task-name {task}"
    found = commands(
        {"mlflow.source.name": f"{first} {pod}", "mlflow.source.git.commit": "a1b2c3d" * 5 + "01234"}, "id"
    )
    assert found[:3] == [
        f"git checkout {'a1b2c3d' * 5}01234",
        ". .venv/bin/activate",
        "curl -fsS -o recipe.json {base}/executions/id/recipe.json",
    ]
    assert found[-1] == f"pyflyte run {workflow} --recipe recipe.json" and "s3://" not in str(found)


def test_a_file_of_the_user_s_own_keeps_its_path() -> None:
    recorded = {"mlflow.source.name": "pyflyte run /home/me/workflows/mine.py dag"}
    assert commands(recorded, "id")[-1] == "pyflyte run /home/me/workflows/mine.py dag"


def test_a_continuous_run_is_said_to_start_from_the_registry() -> None:
    recorded = {"mlflow.source.name": "pyflyte run workflows/continuous.py continue_training --recipe mine.yaml"}
    note, command = commands(recorded, "id")[-2:]
    assert note.startswith("# continues from the generations") and command.endswith("--recipe recipe.json")


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


def test_a_file_is_shown_or_downloaded(page: TestClient, store: Stored) -> None:
    (file,) = page.get(f"{ROOT}/artifacts/{store.digests['sft']}.json").json()["files"]
    answer = page.get(file["url"])
    assert answer.content == b"sft 0.003" and "attachment" in answer.headers["content-disposition"]
    assert "sandbox" in answer.headers["content-security-policy"]
    for name in ("manifest.json", "../log.txt", "..%2flog.txt", "record/none.json"):
        assert page.get(f"{ROOT}/artifacts/{store.digests['sft']}/files/{name}").status_code == 404


def test_a_log_is_searched_and_downloaded_without_its_secrets(page: TestClient, store: Stored) -> None:
    run = page.get(f"{ROOT}/artifacts/{store.digests['sft']}.json").json()["makers"][0]["id"]
    assert page.get(f"{ROOT}/runs/{run}/log.txt").text == "step 1\nloaded https://[redacted]@host/x\n"
    found = page.get(f"{ROOT}/runs/{run}/log.json?find=LOADED").json()["lines"]
    assert found == [{"number": 2, "text": "loaded https://[redacted]@host/x"}]
    assert page.get(f"{ROOT}/runs/{run}/log.json?find=secret").json()["lines"] == []


def test_curves_are_drawn_over_time_and_on_a_logarithmic_axis(page: TestClient, store: Stored) -> None:
    run = page.get(f"{ROOT}/artifacts/{store.digests['sft']}.json").json()["makers"][0]["id"]
    found = page.get(f"{ROOT}/runs/{run}.json?x=time&y=log").json()
    assert (found["axes"], found["step_unit"]) == ({"x": "time", "y": "log"}, "second")
    assert 'aria-label="loss over seconds: ' in page.get(f"{ROOT}/runs/{run}?x=time&y=log").text


def test_the_path_between_two_artifacts_is_marked(page: TestClient, store: Stored) -> None:
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


def test_compared_recipes_are_a_yaml_diff_and_samples_are_paired_by_prompt(page: TestClient, store: Stored) -> None:
    found = page.get(f"{ROOT}/compare.json?a={store.digests['convert']}&b={store.others['convert']}").json()
    assert "-    lr: 0.003" in found["recipes"] and "+    lr: 0.001" in found["recipes"]
    found = page.get(f"{ROOT}/compare.json?a={store.digests['convert']}&b={store.digests['sft']}").json()
    assert found["recipes"] == []
    (sample,) = found["samples"]
    assert sample["prompt"] == "1 + 1 =" and sample["a"]["completion"] == sample["b"]["completion"] == HOSTILE


def test_metrics_over_time_have_a_line_for_each_model(page: TestClient, store: Stored) -> None:
    found = page.get(f"{ROOT}/metrics.json?recipe=laptop").json()
    (right,) = [each for each in found["metrics"] if each["name"] == "sums.right"]
    assert right["lines"] == {"base": [[1.0, 0.1]], "sft": [[1.0, 0.25]], "champion": [[1.0, 0.25]]}
    assert found["recipes"] == ["laptop again", "laptop"]
    assert found["executions"][0]["id"] == store.first


def test_metrics_are_shown_in_the_units_that_the_evaluation_gave_them(page: TestClient, store: Stored) -> None:
    a, b = store.digests["convert"], store.digests["sft"]
    shown = text(page.get(f"{ROOT}/compare?a={a}&b={b}").text)
    assert "sums.right 10.0 % 25.0 % +15.0 points ± 5.5 unpaired ▲ better" in shown
    assert "sums.right 25.0 %" in text(page.get(f"{ROOT}/artifacts/{b}").text)
    assert "sums.right" in text(page.get(f"{ROOT}/models").text) and "25.0 %" in text(page.get(f"{ROOT}/models").text)


def test_the_best_model_of_an_execution_is_by_the_headline_of_its_evaluations(page: TestClient, store: Stored) -> None:
    (first,) = [each for each in page.get(f"{ROOT}/executions.json").json()["executions"] if each["id"] == store.first]
    assert first["best"] == {"name": "sums.right", "value": 0.25, "unit": "share", "model": "sft"}
    assert "25.0 % sums.right, sft" in text(page.get(f"{ROOT}/executions/{store.first}").text)


def test_the_best_model_of_an_execution_is_one_that_it_made(home: Path, tmp_path: Path) -> None:
    """The champion that it was compared with is not a candidate."""
    id = begin_execution("night", {})
    note_cached("convert", "hf_model", "b" * 64, {"label": "base"})
    for title, model, right in (("evaluate-base", "b" * 64, 0.1), ("evaluate-champion", "a" * 64, 0.25)):
        with tracked(title, tmp_path / title, spec={}, inputs={"model": model}) as record:
            record.log_output("eval_report", right.hex(), scored("base", right))
    end_execution()
    deliver(id)
    best = TestClient(alone()).get(f"{ROOT}/executions/{id}.json").json()["best"]
    assert best == {"name": "sums.right", "value": 0.1, "unit": "share", "model": "base"}


def test_the_best_model_of_an_execution_is_the_one_that_it_chose(home: Path, tmp_path: Path) -> None:
    """The metric of the choice is not the headline metric of the evaluations."""
    id = begin_execution("run", {})
    for label, digest, right in (("base", "a" * 64, 0.25), ("sft", "b" * 64, 0.1)):
        note_cached(label, "hf_model", digest, {"label": label})
        with tracked(f"evaluate-{label}", tmp_path / label, spec={}, inputs={"model": digest}) as record:
            record.log_output("eval_report", right.hex(), scored(label, right))
    loss = {"value": 1.5, "unit": "nats", "higher_is_better": False, "standard_error": None, "count": 1}
    facts = {"label": "sft", "chosen": "b" * 64, "headline": "sums.loss", "metrics": {"sums.loss": loss}}
    with tracked("choose", tmp_path / "choose", spec={}, inputs={"models.0": "a" * 64, "models.1": "b" * 64}) as record:
        record.log_output("choice", "c" * 64, facts)
    end_execution()
    deliver(id)
    best = TestClient(alone()).get(f"{ROOT}/executions/{id}.json").json()["best"]
    assert best == {"name": "sums.loss", "value": 1.5, "unit": "nats", "model": "sft"}


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
def test_an_unknown_address_is_an_error_in_both_forms(page: TestClient, path: str) -> None:
    path, _, query = path.partition("?")
    answer = page.get(f"{ROOT}{path}?{query}")
    assert answer.status_code == 404 and "All executions" in answer.text
    if path != "/nowhere":
        assert page.get(f"{ROOT}{path}.json?{query}").json()["error"]


def test_the_pages_are_read_only(page: TestClient, store: Stored) -> None:
    for address in ("/executions", f"/executions/{store.first}", f"/artifacts/{store.digests['sft']}"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert page.request(method, ROOT + address).status_code == 405


def test_a_running_stage_shows_its_progress(home: Path, tmp_path: Path) -> None:
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


def test_stages_to_come_are_listed_with_the_time_they_took_before(home: Path, tmp_path: Path) -> None:
    for plan in (["corpus", "sft"], ["corpus", "sft", "grpo"]):
        id = begin_execution("planned", {}, plan=plan)
        with tracked("corpus", tmp_path / id / "corpus", spec={}, inputs={}):
            pass
        if "grpo" in plan:
            break
        with tracked("sft", tmp_path / id / "sft", spec={}, inputs={}):
            time.sleep(0.05)
        end_execution()
        deliver(id)
    assert flush(60)
    found = TestClient(alone()).get(f"{ROOT}/executions/{id}.json").json()
    assert [each["title"] for each in found["to_come"]] == ["sft", "grpo"]
    assert found["to_come"][0]["expected_s"] > 0 and found["to_come"][1]["expected_s"] is None
    assert found["left"]["complete"] is False
    assert "2 to come" in TestClient(alone()).get(f"{ROOT}/executions/{id}").text


def test_stages_are_in_the_plan_s_order_and_what_ended_an_execution_is_reported(home: Path, tmp_path: Path) -> None:
    """Results from a cluster's cache are recorded last."""
    id = begin_execution("cached", {}, plan=["corpus", "sft", "report"])
    with tracked("report", tmp_path / "report", spec={}, inputs={}):
        pass
    for title in ("sft", "corpus"):
        note_cached(title, title, title, {})
    assert end_execution(FAILED, error="corpus.source.path: there is no bucket b")
    page = TestClient(alone()).get(f"{ROOT}/executions/{id}.json").json()
    assert [stage["title"] for stage in page["stages"]] == ["corpus", "sft", "report"]
    assert page["error"] == "corpus.source.path: there is no bucket b"
    assert page["error"] in TestClient(alone()).get(f"{ROOT}/executions/{id}").text


def test_an_execution_whose_process_was_killed_is_not_running(home: Path) -> None:
    folder = home / "executions" / "20260101-000000-000-abcd"
    write_execution(folder, Execution(folder.name, "killed", {}, {}, "command", time.time()))
    lock = hold(folder)
    push_execution(folder)
    page = TestClient(alone())
    assert page.get(f"{ROOT}/executions/{folder.name}.json").json()["status"] == "RUNNING"
    os.close(lock)  # the kernel does this for a process that is killed
    found = page.get(f"{ROOT}/executions/{folder.name}.json").json()
    assert found["status"] == "KILLED" and not found["live"]


def test_dns_rebinding_is_refused(store: Stored) -> None:
    page = TestClient(alone(hosts=("127.0.0.1",)), base_url="http://127.0.0.1:5000")
    assert page.get(f"{ROOT}/executions").status_code == 200
    assert page.get(f"{ROOT}/executions", headers={"host": "evil.example:5000"}).status_code == 400


def test_mlflow_and_baton_are_one_server(store: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", store.uri)
    server = TestClient(with_mlflow(), base_url="http://localhost")
    assert store.first in server.get(f"{ROOT}/executions").text
    assert server.get("/health").text == "OK"
    page = server.get(f"{ROOT}/executions/{store.first}").text
    link = re.search(r'href="([^"]+)">In MLflow', page)
    assert link and link[1].partition("runs?searchFilter=")[0] == "/#/experiments/1/"
    only = unquote(link[1].partition("searchFilter=")[2])
    runs = MlflowClient(store.uri).search_runs(["1"], only)
    assert {run.data.tags["baton.execution"] for run in runs} == {store.first}


# Malicious names


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


def test_a_file_outside_batons_home_is_never_read(home: Path, tmp_path: Path) -> None:
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


def test_an_artifact_that_was_deleted_or_replaced_is_shown_as_such(home: Path) -> None:
    job = home / "jobs" / "one"
    assert look(str(job), "d").state == "gone"
    assert look(None, "d").state == "unknown"
    (job / "output").mkdir(parents=True)
    (job / "output" / "manifest.json").write_text(json.dumps({"digest": "other", "files": {}}))
    assert look(str(job), "d").state == "changed"
    (job / "output" / "manifest.json").write_text('{"digest": "d", "fi')
    assert look(str(job), "d").state == "gone"

"""A stage under Flyte's local execution: when it runs, and when its result comes from the cache."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from baton.infra.placement.machine import ATTEMPT, NODES, RESTARTS, START
from baton.infra.process.launch import Engine, job_directory
from baton.infra.tracking.remote_run import JOB
from baton.tasks.core.job import open_job
from baton.tasks.core.manifest import read_manifest
from baton.tasks.core.removed import was_removed
from baton.workflows.gc.command import main as gc
from tests import forked
from tests.stage.engines import CountSpec

forked.load("flytekit", "mlflow", "mlflow.store.tracking.sqlalchemy_store", "pandas", "pyarrow")

# the variables that job.py sets on the only machine of a job
MACHINE = {ATTEMPT: "a", NODES: "1", RESTARTS: "0", START: "s", "NODE_RANK": "0"}


@dataclass(frozen=True)
class Run:
    """The record of one execution of the chain."""

    ran: list[str]  # the stages whose engines were started
    text: dict[str, Any]
    count: dict[str, Any]
    output: str


def chain(
    home: Path,
    make: dict[str, Any],
    count: dict[str, Any] | None = None,
    *more: dict[str, Any],
    job: str = "",
    dag: bool = False,
) -> Run:
    """Run the chain. With `dag`, the stages run as calls of a DAG, and not as a workflow that calls them."""
    starts = home / "starts"
    starts.unlink(missing_ok=True)
    specs = [json.dumps(spec) for spec in (make, count or {}, *more)]
    environment = {"BATON_HOME": str(home), "TOY_STARTS": str(starts), "TOY_DAG": str(dag)}
    environment |= MACHINE | {JOB: job} if job else {}
    log = home / "said"
    log.unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        ended = forked.program(log, "tests.stage.chain", *specs).wait()
    output = log.read_text()
    assert ended == 0, output
    ((text, counted),) = [json.loads(line) for line in output.splitlines() if line.startswith("[{")]
    ran = starts.read_text().split() if starts.exists() else []
    return Run(ran, text, counted, output)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of all tests; each test leaves its files complete."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def first(home: Path) -> Run:
    """The result of the chain's first run."""
    return chain(home, {"text": "ab", "times": 2})


def test_stages_are_run_in_their_order_and_their_facts_handed_on(first: Run) -> None:
    assert first.ran == ["make", "count"]
    assert (first.text["letters"], first.count["found"]) == (4, 2)


def test_nothing_is_run_a_second_time(home: Path, first: Run) -> None:
    again = chain(home, {"text": "ab", "times": 2})
    assert again.ran == []
    assert (again.text, again.count) == (first.text, first.count)


def test_the_same_content_at_another_path_is_a_hit_for_what_follows(home: Path, first: Run) -> None:
    other = chain(home, {"text": "abab", "times": 1})
    assert other.ran == ["make"]
    assert other.text["path"] != first.text["path"]
    assert other.count == first.count


def test_equal_files_with_another_fact_run_what_can_read_it(home: Path, first: Run) -> None:
    signed = chain(home, {"text": "ab", "times": 2, "author": "ada"})
    manifests = [read_manifest(Path(run.text["path"])) for run in (first, signed)]
    assert manifests[0].digest == manifests[1].digest
    assert signed.ran == ["make", "count"]
    assert chain(home, {"text": "abab", "author": "ada"}).ran == ["make"]


def test_a_stage_finds_no_path_time_or_title_in_its_input(first: Run) -> None:
    job = open_job(job_of(first.count))  # opens the job by hand, which creates the views again
    given = job.input("text")
    try:
        assert given == job.directory / "inputs" / "text"
        assert sorted(path.name for path in given.iterdir()) == ["manifest.json", "text.txt"]
        manifest = read_manifest(given)
        assert (manifest.title, manifest.spec, manifest.parents, manifest.versions) == ("", {}, {}, {})
    finally:
        shutil.rmtree(job.directory / "inputs")


def test_another_spec_runs_its_stage_and_no_other(home: Path, first: Run) -> None:
    other = chain(home, {"text": "ab", "times": 2}, {"letter": "b"})
    assert other.ran == ["count"]
    assert first.count["path"] != other.count["path"]


def test_another_input_runs_what_depends_on_it(home: Path, first: Run) -> None:
    assert chain(home, {"text": "abb"}).ran == ["make", "count"]


def job_of(made: dict[str, Any]) -> Path:
    return Path(made["path"]).parent


@pytest.fixture(scope="module")
def longer(home: Path, first: Run) -> Run:
    """The result of the same chain with one more text in a list."""
    return chain(home, {"text": "ab", "times": 2}, None, {"text": "aaa"})


def test_a_list_of_artifacts_is_as_many_inputs(longer: Run) -> None:
    assert longer.ran == ["make", "count"]
    assert longer.count["found"] == 2 + 3
    assert read_manifest(Path(longer.count["path"])).parents.keys() == {"text", "more.0"}
    assert set(json.loads((job_of(longer.count) / "spec.json").read_text())["inputs"]) == {"text", "more.0"}


def test_another_item_of_a_list_runs_what_depends_on_it(home: Path, longer: Run) -> None:
    other = chain(home, {"text": "ab", "times": 2}, None, {"text": "aa"})
    assert other.ran == ["make", "count"]
    assert job_of(other.count) != job_of(longer.count)
    same_content = chain(home, {"text": "ab", "times": 2}, None, {"text": "a", "times": 2})
    assert same_content.ran == ["make"]
    assert same_content.count == other.count


def test_an_empty_list_leaves_no_trace_in_the_identity(first: Run) -> None:
    words = json.loads((job_of(first.count) / "spec.json").read_text())
    assert words["inputs"].keys() == {"text"}
    keys = {"text": read_manifest(Path(first.text["path"])).identity}
    plain = job_directory(Engine("count", "tests.stage.engines", "1"), CountSpec().identity(), keys)
    assert plain.name == job_of(first.count).name


@pytest.fixture(scope="module")
def of_calls(home: Path, first: Run) -> Run:
    """The chain as calls of a DAG, whose cache keys differ from those of a workflow's inputs."""
    return chain(home, {"text": "ab", "times": 2}, dag=True)


@pytest.mark.parametrize("gone", ["", "text.txt", "manifest.json"])
def test_files_that_are_gone_are_recomputed_when_a_stage_reads_them(home: Path, of_calls: Run, gone: str) -> None:
    assert of_calls.ran == []
    path = Path(of_calls.text["path"], gone)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = chain(home, {"text": "ab", "times": 2}, {"letter": f"x{gone[:1]}"}, dag=True)
    assert again.ran == ["make", "count"]
    assert Path(again.text["path"], "text.txt").read_text() == "abab"


def test_files_that_are_gone_and_that_no_stage_reads_are_not_recomputed(home: Path, of_calls: Run) -> None:
    folder = Path(of_calls.text["path"])
    shutil.rmtree(folder)
    again = chain(home, {"text": "ab", "times": 2}, dag=True)
    assert again.ran == [] and not folder.exists()
    assert again.count == of_calls.count
    assert "text           cached, its files are gone" in again.output


def test_a_second_run_is_cached_after_gc_and_a_stage_that_runs_gets_back_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    first = chain(tmp_path, {"text": "ab", "times": 2}, dag=True)
    removed = CliRunner().invoke(gc, ["--delete", "--kind", "text", "--kind", "count"])
    assert removed.exit_code == 0 and "removed" in removed.output, removed.output
    outputs = [Path(made["path"]) for made in (first.text, first.count)]
    assert all(was_removed(str(output)) and (output / "manifest.json").exists() for output in outputs)
    again = chain(tmp_path, {"text": "ab", "times": 2}, dag=True)
    assert again.ran == [] and again.count == first.count
    other = chain(tmp_path, {"text": "ab", "times": 2}, {"letter": "z"}, dag=True)
    assert other.ran == ["make", "count"] and other.text == first.text
    alone = chain(tmp_path, {"text": "ab", "times": 2})  # a workflow that calls the stages itself needs the files
    assert alone.ran == ["count"]
    assert not any(was_removed(str(output)) for output in outputs)


def test_files_that_are_gone_are_recomputed_for_a_stage_whose_own_files_are_damaged(home: Path, of_calls: Run) -> None:
    shutil.rmtree(of_calls.text["path"], ignore_errors=True)
    (Path(of_calls.count["path"]) / "count.json").write_text("{}")
    again = chain(home, {"text": "ab", "times": 2}, dag=True)
    assert again.ran == ["make", "count"] and again.count == of_calls.count


def test_files_that_are_gone_are_recomputed_where_a_workflow_calls_the_stages_itself(home: Path, first: Run) -> None:
    shutil.rmtree(first.text["path"])
    again = chain(home, {"text": "ab", "times": 2})
    assert again.ran == ["make"] and again.count == first.count
    assert Path(first.text["path"], "text.txt").read_text() == "abab"


def test_a_home_that_was_moved_has_everything_still(home: Path, first: Run, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    home.rename(moved)
    try:
        again = chain(moved, {"text": "ab", "times": 2})
        assert again.ran == [] and "again" not in again.output
        assert again.text["path"] == first.text["path"].replace(str(home), str(moved))
    finally:
        moved.rename(home)


@pytest.mark.parametrize("content", ["abba", "aba"], ids=["changed", "cut short"])
def test_damaged_files_are_named_and_recomputed(home: Path, first: Run, content: str) -> None:
    Path(first.text["path"], "text.txt").write_text(content)
    again = chain(home, {"text": "ab", "times": 2})
    assert again.ran == ["make"]
    assert "text.txt" in again.output
    assert Path(again.text["path"], "text.txt").read_text() == "abab"


def test_a_finished_job_is_found_again_without_flyte_s_cache(home: Path, first: Run) -> None:
    shutil.rmtree(home / "flyte-cache")
    again = chain(home, {"text": "ab", "times": 2})
    assert again.ran == []
    assert again.count == first.count


@pytest.mark.long
def test_what_was_made_before_facts_were_in_keys_is_found_also_if_its_input_is_recomputed(tmp_path: Path) -> None:
    made = chain(tmp_path, {"text": "ab"})
    of_text, of_count = job_of(made.text), job_of(made.count)
    for file in tmp_path.glob("jobs/*/**/manifest.json"):  # the format of the previous version
        content = json.loads(file.read_text())
        file.write_text(json.dumps({name: content[name] for name in content if name not in ("identity", "display")}))
    digest, engine = read_manifest(of_text / "output").digest, Engine("count", "tests.stage.engines", "1")
    of_count.rename(tmp_path / "jobs" / job_directory(engine, CountSpec().identity(), {"text": digest}).name)
    shutil.rmtree(tmp_path / "flyte-cache")
    assert chain(tmp_path, {"text": "ab"}).ran == []

    shutil.rmtree(of_text)
    assert chain(tmp_path, {"text": "ab"}, {"letter": "b"}).ran == ["make", "count"]
    assert chain(tmp_path, {"text": "ab"}).ran == []


def test_a_placement_s_setup_is_kept_nowhere(tmp_path: Path) -> None:
    """This holds also for the files that the stage leaves in the run's storage on the machine of a job."""
    placement = {"setup": "export LOGIN=never-to-be-kept", "secrets": ["LOGIN"]}
    made = chain(tmp_path, {"text": "ab", "placement": placement}, job="baton-make-0")
    assert made.ran == ["make", "count"]
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in kept if b"never-to-be-kept" in path.read_bytes()] == []
    assert any(b"placement.setup_digest" in path.read_bytes() for path in kept if path.name == "run.json")
    assert read_manifest(Path(made.text["path"])).spec["placement"]["secrets"] == ["LOGIN"]

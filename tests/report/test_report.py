import json
import re
import time
from pathlib import Path

import pytest

from baton.infra.tracking.spool import FINISHED, StageRun, execution_folder, write_stage
from baton.tasks.core.manifest import ArtifactError, read_manifest, verify, write_manifest
from baton.tasks.pages.blocks import Table
from baton.tasks.report.report import times
from tests.pages.reading import Reading
from tests.report.example import RATES, example_execution, example_run, make_report

WORSE = RATES | {"grpo": (0.20, 0.90, 0.23, 2.61)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return example_run(tmp_path_factory.mktemp("run"))


def test_the_report_is_one_sealed_page_that_needs_nothing_else(run: dict[str, Path], tmp_path: Path) -> None:
    output = make_report(tmp_path / "job", run)
    assert set(verify(output).files) == {"report.html", "report.md"}
    page = Reading((output / "report.html").read_text())
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "use", "image"} & set(page.tags)
    assert not page.values("src") and not page.values("srcset") and not page.values("style")
    assert all(link.startswith("#") for link in page.values("href"))
    assert "url(" not in (output / "report.html").read_text() and "@import" not in (output / "report.html").read_text()


def test_notices_come_before_the_results(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run")
    (run["grpo"] / "record" / "notices.jsonl").write_text('{"text": "all rewards of 9 of 10 groups are equal"}\n')
    text = (make_report(tmp_path / "job", run) / "report.md").read_text()
    assert "grpo: all rewards of 9 of 10 groups are equal" in text.split("## Result")[0]


def test_the_results_say_what_they_were_measured_on(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run")
    text = (make_report(tmp_path / "job", run) / "report.md").read_text()
    assert "Measured on bits_per_byte: 8 held-out documents of corpus 5eed (8.0 kB); sums: 64 rows of" in text
    manifest = read_manifest(run["eval_grpo"])
    measured = json.loads(json.dumps(manifest.facts).replace("64 rows of data.sums 0dd5", "64 rows of data.sums 0dd6"))
    write_manifest(run["eval_grpo"], manifest.kind, measured, manifest.spec, manifest.parents, title=manifest.title)
    text = " ".join((make_report(tmp_path / "again", run) / "report.md").read_text().split())
    assert "base, sft, dpo: measured on bits_per_byte: 8 held-out" in text
    assert "grpo: measured on bits_per_byte: 8 held-out documents of corpus 5eed (8.0 kB); sums: 64 rows" in text


def test_what_a_killed_engine_left_is_no_part_of_it(run: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "job" / "output").mkdir(parents=True)
    (tmp_path / "job" / "output" / "of_an_earlier_try.html").touch()

    assert set(verify(make_report(tmp_path / "job", run)).files) == {"report.html", "report.md"}


def test_everything_drawn_is_described_and_every_table_has_headers(run: dict[str, Path], tmp_path: Path) -> None:
    page = Reading((make_report(tmp_path / "job", run) / "report.html").read_text())
    labels = [value for tag, name, value in page.attributes if tag == "svg" and name == "aria-label"]
    assert len(labels) == page.tags.count("svg") > 10 and all(labels)
    assert page.tags.count("caption") == page.tags.count("table") == page.tags.count("thead") > 5
    assert page.tags.count("h1") == 1 and page.tags.count("html") == 1
    assert set(page.values("scope")) == {"col", "row"}
    ids = page.values("id")
    assert len(ids) == len(set(ids)) and {link.removeprefix("#") for link in page.values("href")} <= set(ids)


def test_text_and_page_have_the_same_numbers(run: dict[str, Path], tmp_path: Path) -> None:
    output = make_report(tmp_path / "job", run, execution=example_execution())
    text, page = (output / "report.md").read_text(), Reading((output / "report.html").read_text()).text
    numbers = re.findall(r"[+-]?\d[\d.,]* (?:%|s\b|min\b|points)|\d\.\d{3}", text.split("## Where to look next")[0])
    assert len(numbers) > 40
    assert [number for number in numbers if number not in page] == []


def test_the_text_fits_a_terminal_and_says_where_to_look(run: dict[str, Path], tmp_path: Path) -> None:
    output = make_report(tmp_path / "job", run, execution=example_execution())
    text = (output / "report.md").read_text()
    assert len(text.splitlines()) <= 66 and max(map(len, text.split("## Where to look next")[0].splitlines())) <= 120
    assert str(output / "report.html") in text and str(run["published"]) in text
    assert f"baton ui --store sqlite:///{tmp_path}/home/mlflow.db" in text
    assert "--recipe" in text


def test_each_tuned_model_is_compared_with_the_one_it_started_from(run: dict[str, Path], tmp_path: Path) -> None:
    output = make_report(tmp_path / "job", run)
    said = "grpo against dpo, the model it started from: 2 better, 1 worse, 1 unknown."
    assert said in (output / "report.md").read_text() and said in (output / "report.html").read_text()


def test_a_model_that_became_worse_is_shown_as_one(tmp_path: Path) -> None:
    output = make_report(tmp_path / "job", example_run(tmp_path / "run", WORSE))
    text = (output / "report.md").read_text()
    assert "grpo against dpo, the model it started from: 1 better, 2 worse, 1 unknown." in text
    assert re.search(r"sums.right .*\| ✗ −29.7 points ± \d", text)


@pytest.mark.parametrize(
    "stages",
    [
        [],
        ["corpus"],
        ["corpus", "tokenizer", "shards", "pretrain", "base"],  # stopped after convert
        ["corpus", "base", "eval_base"],
        ["corpus", "dpo", "grpo", "eval_dpo", "eval_grpo", "published"],  # starts with RL
        ["grpo", "eval_grpo"],
        ["eval_base", "eval_grpo"],
    ],
)
def test_any_part_of_the_chain_has_a_report(run: dict[str, Path], tmp_path: Path, stages: list[str]) -> None:
    output = make_report(tmp_path / "job", {name: run[name] for name in stages})
    assert Reading((output / "report.html").read_text()).text and (output / "report.md").read_text().startswith(
        "# A run"
    )


def test_the_samples_are_the_same_prompts_side_by_side(run: dict[str, Path], tmp_path: Path) -> None:
    page = Reading((make_report(tmp_path / "job", run) / "report.html").read_text())
    assert page.tags.count("article") == 8
    assert page.text.count("It is 21.") == page.text.count("I do not know.") == 8


def test_the_times_are_those_of_the_execution(run: dict[str, Path], tmp_path: Path) -> None:
    text = (make_report(tmp_path / "job", run, execution=example_execution()) / "report.md").read_text()
    assert re.search(r"corpus +\| +0.0 s \| from the cache", text)
    assert re.search(r"pretrain +\| 3 min 35 s \| finished", text)
    assert re.search(r"total so far +\| +9 min 26 s", text)
    assert "execution 20261121-033000-abcdef · commit 1f1f1f1f1f with changes" in text
    assert not re.search(r"\| report ", text)  # the report is still being written


def test_the_times_have_the_titles_of_the_plan() -> None:
    name = example_execution("20261121-040000-abcdef")
    for label, title in {"chat": "sft chat", "chat-seed1": "sft chat seed 1"}.items():
        run = StageRun(title, {"label": label}, {}, None, {}, {}, 1.0, 2.0, FINISHED)
        write_stage(execution_folder(name) / f"of-{label}", run)
    (table,) = times(name)
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows if "chat" in str(row[0])] == ["sft chat", "sft chat seed 1"]


def test_an_execution_that_is_not_here_is_reported_as_missing(run: dict[str, Path], tmp_path: Path) -> None:
    text = (make_report(tmp_path / "job", run, execution="elsewhere") / "report.md").read_text()
    assert "The times of execution elsewhere are not on this machine." in text


def test_an_artifact_that_was_changed_is_refused(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run")
    completions = run["eval_grpo"] / "completions.jsonl"
    completions.write_text(completions.read_text().replace("21", "23"))
    with pytest.raises(ArtifactError, match=r"eval_report .* completions.jsonl was changed"):
        make_report(tmp_path / "job", run)


def test_a_report_takes_no_time_worth_a_word(run: dict[str, Path], tmp_path: Path) -> None:
    started = time.perf_counter()
    make_report(tmp_path / "job", run)
    assert time.perf_counter() - started < 3

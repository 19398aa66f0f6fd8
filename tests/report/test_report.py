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
from tests.report.example import RATES, example_execution, example_run, lines, make_report

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


def test_one_box_has_all_that_invalidates_the_result_and_the_rest_are_notes(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run")
    (run["sft"] / "record" / "notices.jsonl").write_text('{"text": "columns that are not learned: source"}\n')
    wrong = [{"text": f"{what} was learned", "invalidates": True} for what in ("nothing", "too little")]
    (run["grpo"] / "record" / "notices.jsonl").write_text(lines(wrong))
    output = make_report(tmp_path / "job", run)
    before, _, after = (output / "report.md").read_text().partition("## Result")
    assert "- grpo: nothing was learned\n- grpo: too little was learned" in before
    assert "columns" not in before and "- sft: columns that are not learned: source" in after.partition("## Notes")[2]
    page = Reading((output / "report.html").read_text())
    boxes = [value for tag, name, value in page.attributes if tag in ("p", "ul") and name == "class"]
    assert [value for value in boxes if value and "bad" in value.split()] == ["notes bad"]
    assert page.text.count("nothing was learned") == 1


def test_models_measured_on_other_data_are_in_that_box(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run")
    manifest = read_manifest(run["eval_grpo"])
    facts = json.loads(json.dumps(manifest.facts).replace("64 rows of data.sums 0dd5", "64 rows of data.sums 0dd6"))
    write_manifest(run["eval_grpo"], manifest.kind, facts, manifest.spec, manifest.parents, title=manifest.title)
    text = (make_report(tmp_path / "job", run) / "report.md").read_text()
    assert "cannot be compared, since they were measured on different data: base, sft, dpo; grpo." in text[:400]


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
    numbers = re.findall(r"[+-]?\d[\d.,]* (?:%|s\b|min\b|points)|\d\.\d{3}", text.split("## What was made")[0])
    assert len(numbers) > 40
    assert [number for number in numbers if number not in page] == []


def test_the_text_fits_a_terminal_and_says_where_to_look(run: dict[str, Path], tmp_path: Path) -> None:
    output = make_report(tmp_path / "job", run, execution=example_execution())
    text = (output / "report.md").read_text()
    assert len(text.splitlines()) <= 72 and max(map(len, text.split("## What was made")[0].splitlines())) <= 120
    assert str(output / "report.html") in text and str(run["published"]) in text
    assert f"baton ui --store sqlite:///{tmp_path}/home/mlflow.db" in text
    assert "baton run mine.yaml`" in text


def test_the_terminal_ends_with_the_published_model_its_path_and_the_command_that_serves_it(
    run: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    end = (make_report(tmp_path / "job", run) / "report.md").read_text().partition("## What was made")[2]
    assert "\ngrpo was published as baton-laptop, version 1: grpo is the run's last model.\n" in end
    link = Path("home/models/baton-laptop")
    assert f"- Published model: `{link}`" in end and f"baton serve {link}`" in end
    assert link.resolve() == run["published"]


def test_a_name_that_is_taken_leaves_the_path_by_digest(
    run: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home/models/baton-laptop").mkdir(parents=True)
    text = (make_report(tmp_path / "job", run) / "report.md").read_text()
    assert f"- Published model: `{run['published']}`" in text and f"baton serve {run['published']}`" in text
    assert "the published model has no path by name: " in capsys.readouterr().err


def test_a_run_that_publishes_nothing_ends_with_its_last_model(run: dict[str, Path], tmp_path: Path) -> None:
    parts = {name: run[name] for name in ("corpus", "base", "sft")}
    end = (make_report(tmp_path / "job", parts) / "report.md").read_text().partition("## What was made")[2]
    assert "sft is the run's last model. The recipe has no `publish`" in end
    assert f"- Model: `{run['sft']}`" in end and f"baton serve {run['sft']}`" in end


def test_each_tuned_model_is_compared_with_the_one_it_started_from(run: dict[str, Path], tmp_path: Path) -> None:
    output = make_report(tmp_path / "job", run)
    said = (
        "grpo against dpo, the model it started from: 2 better, 1 worse, 1 unknown (sums.distinct: no standard error)."
    )
    assert said in (output / "report.md").read_text() and said in (output / "report.html").read_text()


def test_a_model_that_became_worse_is_shown_as_one(tmp_path: Path) -> None:
    output = make_report(tmp_path / "job", example_run(tmp_path / "run", WORSE))
    text = (output / "report.md").read_text()
    assert "grpo against dpo, the model it started from: 1 better, 2 worse, 1 unknown (sums.distinct" in text
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


def test_scores_on_training_rows_are_beside_the_held_out_ones_and_show_an_overfit(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run")
    for label, right in (("base", 0.32), ("sft", 1.0)):
        path = run[f"eval_{label}"] / "report.json"
        report = json.loads(path.read_text())
        learned = report["metrics"]["sums.right"] | {"value": right}
        path.write_text(json.dumps(report | {"train": {"sums.right": learned}}))
        manifest = read_manifest(path.parent)
        write_manifest(path.parent, manifest.kind, manifest.facts, manifest.spec, manifest.parents)
    output = make_report(tmp_path / "job", run)
    text = (output / "report.md").read_text()
    assert re.search(
        r"sums.right +\| 31.2 % \| +42.8 % .*\n\| sums.right, training rows \| 32.0 % \| 100.0 % \| +– ", text
    )
    assert (
        "sft is better on training rows than on held-out rows, by more than chance explains (sums.right 100.0 %" in text
    )
    assert "base is better on training rows" not in text
    assert "sums.right, training rows" in Reading((output / "report.html").read_text()).text


def test_all_completions_of_a_prompt_are_shown_and_equal_ones_once(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run")
    page = run["eval_base"]
    first, second, *_ = map(json.loads, (page / "completions.jsonl").read_text().splitlines())
    texts = ["four", "five", "four", "<b>", *(f"word {number}" for number in range(40))]
    (page / "completions.jsonl").write_text(lines([*(first | {"completion": text} for text in texts), second]))
    manifest = read_manifest(page)
    write_manifest(page, manifest.kind, manifest.facts, manifest.spec, manifest.parents)
    output = make_report(tmp_path / "job", {"base": run["base"], "eval_base": page})
    text = Reading((output / "report.html").read_text()).text
    assert "2 of 44 samples, right 1, brief 0.470" in text and "<b>" in text
    assert "28 more\n" in text and "11 more are in completions.jsonl" in text and "word 28" in text
    assert "four  # base, 2 of 44 samples" in (terminal := (output / "report.md").read_text())
    assert "# and 41 more in the report's page" in terminal and "word 0" not in terminal


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

import json
import re
import shutil
from pathlib import Path
from pkgutil import resolve_name

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.tasks.artifacts import kinds
from baton.tasks.core.manifest import ArtifactError, read_manifest, write_manifest
from baton.tasks.data.curation_tally import TALLY, Tally
from baton.tasks.data.documents import document
from baton.tasks.data.source_changes import Changes, Edited, Named, Renamed
from baton.tasks.pages.deck import stage_page
from tests.pages.reading import Reading
from tests.report.example import example_run, lines, make_report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return example_run(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("corpus", ["Corpus", "571", "10.5 MB", "14 duplicates", "shapes.py"]),
        ("tokenizer", ["Tokenizer", "4,096", "3.31 bytes per token"]),
        ("shards", ["Tokenized corpus", "3,001,244", "3.51 bytes per token", "Encoded by gigatoken."]),
        (
            "pretrain",
            [
                "Megatron checkpoint",
                "5.8 M parameters",
                "validation loss 2.3100",
                "validation loss",
                "roll back",
                "4944 to 4959",
            ],
        ),
        ("base", ["Model base", "Qwen3ForCausalLM"]),
        ("audit", ["Conversion audit", "✓ Same model", "5.7e-06", "linear_qkv", "q_proj", "Mapping of 18 tensors"]),
        ("sft", ["Model sft", "Loss"]),
        ("dpo", ["Model dpo", "Preference margin", "Preference accuracy"]),
        ("grpo", ["Model grpo", "Reward", "KL to the reference", "Rollout mismatch", "right"]),
        ("eval_grpo", ["Eval report grpo", "78.4 %", "2.498", "It is 21.", "right 1, brief 0.930"]),
        (
            "endpoint",
            ["Endpoint grpo", "Healthy after 18 s", "no chat template", "1,664", "First token", "95 %", "--dtype auto"],
        ),
        ("published", ["Published model grpo", "baton-laptop, version 1", "A model card."]),
    ],
)
def test_every_kind_of_artifact_has_a_page(run: dict[str, Path], name: str, shown: list[str]) -> None:
    text = Reading(stage_page(run[name])).text
    assert [word for word in shown if word not in text] == []


@pytest.mark.parametrize("kind", kinds())
def test_the_page_that_a_kind_names_exists(kind: str) -> None:
    assert callable(resolve_name(kinds()[kind].page))


def test_an_increment_tells_what_became_of_the_source(run: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(run["corpus"], tmp_path / "increment")
    Changes(
        edited=[Edited(source="shapes.py", before="a" * 64, after="b" * 64)],
        renamed=[Renamed(id="c" * 64, before="old name.py", after="new name.py")],
        deleted=[Named(source=f"{number}.py", id="d" * 64) for number in range(500)],
    ).write(tmp_path / "increment")
    manifest = read_manifest(tmp_path / "increment")
    gone = {"gone": 501}
    write_manifest(tmp_path / "increment", manifest.kind, manifest.facts | gone)
    text = Reading(stage_page(tmp_path / "increment")).text
    shown = ["Since the previous corpora", "501", "502 changes, the first 400 shown", "aaaaaaaaaaaa → bbbbbbbbbbbb"]
    assert [word for word in (*shown, "new name.py", "was old name.py") if word not in text] == []
    assert "Since the previous corpora" not in Reading(stage_page(run["corpus"])).text


def test_a_curated_corpus_tells_what_each_step_dropped_and_why(tmp_path: Path) -> None:
    tally, item = Tally(), document("web/a.jsonl#1", "Der Fluss war gestiegen.")
    count = tally.of("language", "web")
    count.documents, count.bytes = 8, 4000
    count.drop(item, 1000, "de")
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / TALLY).write_text(tally.model_dump_json())
    counts = {"documents": 7, "held_out_documents": 1, "bytes": 2900, "held_out_bytes": 100}
    facts = counts | {"duplicates": 0, "empty": 0, "invalid_utf8": 0, "broken": 0}
    write_manifest(tmp_path, "corpus", facts | {"curation": tally.facts(), "sources": {"web": counts}})
    text = Reading(stage_page(tmp_path)).text
    shown = ["Sources", "Curation", "language", "12.5 %", "1.0 kB", "de 1", "Der Fluss war gestiegen.", "web/a.jsonl#1"]
    assert [word for word in shown if word not in text] == []


def test_a_page_names_the_parents_the_spec_and_the_versions(run: dict[str, Path]) -> None:
    text = Reading(stage_page(run["pretrain"])).text
    assert "model.hidden" in text and "python" in text and "made from" in text


@pytest.mark.parametrize("name", ["corpus", "tokenizer", "pretrain", "base", "grpo", "eval_grpo", "published"])
def test_a_page_does_without_the_record(run: dict[str, Path], name: str, tmp_path: Path) -> None:
    bare = tmp_path / name
    shutil.copytree(run[name], bare, ignore=shutil.ignore_patterns("record", "completions.jsonl", "report.json"))
    assert Reading(stage_page(bare)).text


def test_an_evaluation_on_several_held_out_sets_shows_each(run: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page"
    shutil.copytree(run["eval_base"], page)
    counts = {"documents": 3, "bytes": 9000, "tokens": 4000}
    sets = {"corpus": counts | {"bits_per_byte": 2.412}, "more.0": counts | {"bits_per_byte": 2.755}}
    report = json.loads((page / "report.json").read_text())
    (page / "report.json").write_text(json.dumps(report | {"sets": sets}))
    text = Reading(stage_page(page)).text
    assert [shown for shown in ("Each held-out set", "more.0", "2.755", "9.0 kB") if shown not in text] == []
    (page / "report.json").write_text(json.dumps(report | {"sets": {"corpus": sets["corpus"]}}))
    assert "Each held-out set" not in Reading(stage_page(page)).text


def test_a_kind_that_nobody_foresaw_shows_its_facts_and_its_metrics(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "metrics.jsonl").write_text(
        lines([{"step": 1, "surprise": 2.5}, {"step": 2, "surprise": 3}])
    )
    write_manifest(tmp_path, "new_kind", {"answer": 42})
    text = Reading(stage_page(tmp_path)).text
    assert "New kind" in text and "42" in text and "surprise" in text


def test_the_reports_page_is_the_report_in_a_frame_that_can_do_nothing(run: dict[str, Path], tmp_path: Path) -> None:
    output = make_report(tmp_path / "job", {"corpus": run["corpus"]})
    page = Reading(stage_page(output))
    assert page.tags == ["iframe"] and page.values("sandbox") == [""]
    assert page.values("srcdoc") == [(output / "report.html").read_text()]


def test_what_is_no_artifact_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=re.escape(str(tmp_path))):
        stage_page(tmp_path)


def test_half_a_line_and_numbers_that_are_none_are_left_out_of_curves(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    good = lines([{"step": 1, "loss": 3.0}, {"step": 2, "loss": float("nan")}, {"step": 3, "loss": "high"}])
    (tmp_path / "record" / "metrics.jsonl").write_text(good + '{"step": 4, "lo\n' + lines([{"step": 5, "loss": 1.0}]))
    write_manifest(tmp_path, "any", {})
    assert "loss from 3 to 1" in stage_page(tmp_path)


def test_a_metric_that_was_logged_once_is_no_chart(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    logged = [{"step": 1, "loss": 3.0, "reward": 0.5, "own": 7.0}, {"step": 2, "loss": 1.0, "validation_loss": 2.0}]
    (tmp_path / "record" / "metrics.jsonl").write_text(lines(logged))
    write_manifest(tmp_path, "any", {})
    page = Reading(stage_page(tmp_path))
    assert page.tags.count("svg") == 1 and "Metrics that were logged once" in page.text
    assert "reward0.5\n" in page.text and "own7\n" in page.text


def test_a_step_that_was_taken_again_counts_once(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    rows = [{"step": 1, "loss": 9.0}, {"step": 2, "loss": 8.0}, {"step": 1, "loss": 5.0}, {"step": 2, "loss": 4.0}]
    (tmp_path / "record" / "metrics.jsonl").write_text(lines(rows))
    write_manifest(tmp_path, "any", {})
    assert "loss from 5 to 4" in stage_page(tmp_path)


@settings(max_examples=40, deadline=None)
@given(text=st.text(min_size=1, max_size=30).map(lambda text: f"</pre><script>{text}"))
def test_what_a_model_wrote_never_becomes_part_of_the_page(
    run: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    page = tmp_path_factory.mktemp("page")
    shutil.copytree(run["eval_base"], page, dirs_exist_ok=True)
    row = json.loads((run["eval_base"] / "completions.jsonl").read_text().splitlines()[0])
    hostile = row | dict.fromkeys(("evaluator", "prompt", "reference", "completion"), text)
    (page / "completions.jsonl").write_text(lines([hostile]))
    tags = Reading(stage_page(page)).tags
    assert "script" not in tags

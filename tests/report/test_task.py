from collections.abc import Iterator
from pathlib import Path

import pytest
from flytekit import workflow

from baton.infra.tracking.execution import close_execution
from baton.tasks.data.artifact import Corpus, TokenizedCorpus, Tokenizer
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.models.artifact import HFModel
from baton.tasks.pretrain.artifact import MegatronCheckpoint
from baton.tasks.publish.artifact import PublishedModel
from baton.tasks.report.artifact import Report
from baton.tasks.report.spec import ReportSpec
from baton.tasks.report.task import report
from tests.report.example import example_run

LABELS = ("base", "sft", "dpo", "grpo")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The home of all tests, since a process tracks into one home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATON_HOME", str(tmp_path_factory.mktemp("home")))
        yield
        close_execution()


@workflow
def after_everything(
    spec: ReportSpec, corpus: Corpus, models: list[HFModel], reports: list[EvalReport], tokenizer: Tokenizer,
    shards: TokenizedCorpus, checkpoint: MegatronCheckpoint, published: PublishedModel,
) -> Report:  # fmt: skip
    parts = {
        "corpus": corpus, "tokenizer": tokenizer, "shards": shards, "pretrain": checkpoint, "published": published,
    }  # fmt: skip
    return report(spec=spec, models=models, reports=reports, parts=parts)


@workflow
def after_nothing(spec: ReportSpec, corpus: Corpus) -> Report:
    return report(spec=spec, models=[], reports=[], parts={"corpus": corpus})


def test_the_last_node_prints_the_report_of_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = example_run(tmp_path / "run")
    made = after_everything(
        spec=ReportSpec(title="All of it"),
        corpus=Corpus.from_directory(run["corpus"]),
        models=[HFModel.from_directory(run[label]) for label in LABELS],
        reports=[EvalReport.from_directory(run[f"eval_{label}"]) for label in LABELS],
        tokenizer=Tokenizer.from_directory(run["tokenizer"]),
        shards=TokenizedCorpus.from_directory(run["shards"]),
        checkpoint=MegatronCheckpoint.from_directory(run["pretrain"]),
        published=PublishedModel.from_directory(run["published"]),
    )
    printed = capsys.readouterr().out
    assert (
        printed.startswith("# All of it\n")
        and "13 artifacts" in printed
        and "grpo against dpo, the model it started from" in printed
    )
    assert (Path(made.directory.path) / "report.md").read_text() in printed


def test_a_stage_that_was_left_out_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = example_run(tmp_path / "run")
    after_nothing(spec=ReportSpec(title="Data only"), corpus=Corpus.from_directory(run["corpus"]))
    assert "\n1 artifact\n" in capsys.readouterr().out


def test_each_execution_has_a_report_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = Corpus.from_directory(example_run(tmp_path / "run")["corpus"])
    first, again, other = (
        after_nothing(spec=ReportSpec(execution=execution), corpus=corpus) for execution in ("one", "one", "two")
    )
    assert first.directory.path == again.directory.path != other.directory.path
    assert capsys.readouterr().out.count("# Baton\n") == 3  # Flyte's cache never answers for the report

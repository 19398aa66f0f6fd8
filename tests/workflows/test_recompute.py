"""The choice of cached stages that are recomputed because their files are gone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from baton.tasks.artifacts import Artifact, kinds
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.core.removed import remove_files
from baton.tasks.core.spec import StageSpec
from baton.tasks.models.artifact import Base
from baton.workflows.dag.call import Call
from baton.workflows.dag.recompute import recomputed

Make = Callable[..., Artifact]

# the calls from the corpus to two evaluations of an adapter, both in the report
DAG = [
    Call("corpus", "prepare_corpus", StageSpec()),
    Call("pretrain", "pretrain", StageSpec(), {"data": "corpus"}),
    Call("base", "convert", StageSpec(), {"checkpoint": "pretrain"}),
    Call("sft", "sft", StageSpec(), {"model": "base"}),
    Call("evaluate", "evaluate", StageSpec(), {"model": "sft"}),
    Call("report", "report", StageSpec(), {"models": ["base", "sft"], "reports": ["evaluate"]}),
]
KINDS = {
    "corpus": "corpus", "pretrain": "megatron_checkpoint", "base": "hf_model", "sft": "hf_model",
    "evaluate": "eval_report",
}  # fmt: skip


@pytest.fixture
def cached(tmp_path: Path) -> dict[str, Artifact]:
    """The artifacts of all calls except the report."""

    def made(title: str) -> Artifact:
        (tmp_path / title).mkdir()
        (tmp_path / title / "file").write_text(title)
        write_manifest(tmp_path / title, KINDS[title], {}, {})
        of_any_kind = Artifact.from_directory(tmp_path / title)
        return kinds()[KINDS[title]].model_construct(**dict(of_any_kind))

    found = {title: made(title) for title in KINDS}
    base = Base(digest=found["base"].digest, place=found["base"].place)
    return found | {"sft": found["sft"].model_copy(update={"base": base})}


def recomputed_stages(cached: dict[str, Artifact], gone: list[str], runs: tuple[str, ...] = ()) -> set[str]:
    """Return the stages that are recomputed if the files of `gone` were removed and the stages `runs` are not
    cached."""
    for title in gone:
        (Path(cached[title].place) / "file").unlink()
    return recomputed(DAG, {title: artifact for title, artifact in cached.items() if title not in runs})


def test_an_artifact_is_not_recomputed_if_another_was_made_from_it(cached: dict[str, Artifact]) -> None:
    assert recomputed_stages(cached, ["corpus", "pretrain", "base"]) == set()


def test_an_artifact_is_recomputed_if_a_stage_that_runs_reads_it(cached: dict[str, Artifact]) -> None:
    assert recomputed_stages(cached, ["corpus", "pretrain"], runs=("base", "sft", "evaluate")) == {"corpus", "pretrain"}


def test_so_is_the_base_of_an_adapter_that_is_read(cached: dict[str, Artifact]) -> None:
    assert recomputed_stages(cached, ["pretrain", "base"], runs=("evaluate",)) == {"pretrain", "base"}


def test_a_measurement_is_recomputed_since_nothing_is_made_from_it(cached: dict[str, Artifact]) -> None:
    assert recomputed_stages(cached, ["pretrain", "evaluate"]) == {"evaluate"}


def test_a_model_that_was_only_measured_is_recomputed(cached: dict[str, Artifact]) -> None:
    assert recomputed_stages(cached, ["sft"]) == {"sft"}


def test_a_stage_with_damaged_files_reads_its_inputs_again(cached: dict[str, Artifact]) -> None:
    (Path(cached["base"].place) / "file").write_text("another model")
    assert recomputed_stages(cached, ["corpus", "pretrain"]) == {"corpus", "pretrain"}


def test_what_gc_has_removed_is_recomputed_only_for_a_stage_that_reads_it(cached: dict[str, Artifact]) -> None:
    for title in ("sft", "evaluate", "pretrain"):
        remove_files(Path(cached[title].place), read_manifest(Path(cached[title].place)))
    assert recomputed_stages(cached, []) == set()
    assert recomputed_stages(cached, [], runs=("evaluate",)) == {"sft"}

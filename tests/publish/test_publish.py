"""The published directory, its card, and its version in the registry."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from mlflow import MlflowClient

from baton.infra.tracking.store import tracking_uri
from baton.tasks.core.job import Job, StageError, open_job
from baton.tasks.core.manifest import ArtifactError, read_manifest, verify, write_manifest
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.models.adapter_base import ModelFolders
from baton.tasks.promote.ledger import champion, load
from baton.tasks.publish.aliases import version_at
from baton.tasks.publish.artifact import PublishedModel
from baton.tasks.publish.card import model_card
from baton.tasks.publish.chain import chain, reports
from baton.tasks.publish.publish import work
from baton.tasks.publish.registry import Publication, register
from baton.tasks.publish.spec import PublishSpec
from baton.tasks.serve.fetched import fetch
from tests.promote import made
from tests.publish.conftest import METRICS, Chain, publish
from tests.tracking.conftest import free_port

ALL = ("model", "base", "corpus", "eval_base", "eval_grpo")
SPEC = {"name": "baton-test", "alias": "champion", "description": "A **tiny** model.", "license": "mit"}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, empty_store: Path, sealed: Chain) -> Iterator[Path]:
    """A published directory, which tests must not change. Tests that need its registry request it."""
    root = tmp_path_factory.mktemp("published")
    shutil.copy(empty_store, root / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATON_HOME", str(root))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        done = publish(sealed.job(root / "job", SPEC, *ALL))
        assert done.returncode == 0, done.stderr
        yield root / "job" / "output"


def versions(name: str) -> list[str]:
    found = MlflowClient(tracking_uri()).search_model_versions(f"name = '{name}'")
    return sorted(str(version.version) for version in found)


def test_the_published_model_loads_and_is_the_same(published: Path, sealed: Chain) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    before = AutoModelForCausalLM.from_pretrained(sealed.paths["model"]).state_dict()
    after = AutoModelForCausalLM.from_pretrained(published).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert AutoTokenizer.from_pretrained(published)("def f():\n    ")["input_ids"]


def test_it_is_a_sealed_artifact_with_its_registry_version(published: Path) -> None:
    manifest = verify(published)
    assert manifest.kind == "published_model"
    assert manifest.facts == {"label": "grpo", "registry_name": "baton-test", "registry_version": "1"}
    assert not any(name.startswith("record/") for name in manifest.files)


def test_the_registry_has_the_version_with_digest_alias_and_scores(published: Path, sealed: Chain) -> None:
    version = MlflowClient(tracking_uri()).get_model_version_by_alias("baton-test", "champion")
    assert version.tags["baton.digest"] == read_manifest(published).digest
    assert version.tags["baton.model"] == sealed.manifests["model"].digest
    assert version.tags["baton.eval.sums.right"] == "0.5"
    assert json.loads(version.tags["baton.metric.sums.pass:at:2"])["unit"] == "share"
    assert version.source == published.as_uri()
    assert version.description == "A **tiny** model."


def test_a_small_score_keeps_its_digits_in_the_registry(home: Path, tmp_path: Path) -> None:
    model = made.model(tmp_path / "model")
    facts = {"label": "base", "model_digest": read_manifest(model).digest, "metrics": {"rare": made.metric(4.32e-5)}}
    report = made.seal(tmp_path / "report", EvalReport, facts, {"report.json": "{}"})
    made.run(work, PublishedModel, tmp_path / "publish", {"name": made.NAME}, model=model, reports_0=report)
    version = MlflowClient(tracking_uri()).get_model_version(made.NAME, "1")
    assert version.tags["baton.eval.rare"] == "4.32e-05"


def test_the_card_is_one_that_the_hub_reads(published: Path) -> None:
    card = ModelCard.load(published / "README.md")
    data = card.data
    assert (data.license, data.library_name, data.pipeline_tag) == ("mit", "transformers", "text-generation")
    assert {result.metric_type: result.metric_value for result in data.eval_results}["sums.right"] == 0.5
    assert "older card" not in card.text


def test_the_card_shows_the_models_side_by_side_and_what_made_them(published: Path, sealed: Chain) -> None:
    text = (published / "README.md").read_text()
    assert "| metric | base | grpo | better | measured on |" in text
    assert "| sums.right | 50.0 % ± 1.0 | 50.0 % ± 1.0 | higher |" in text
    assert "base → grpo" in text
    for manifest in (sealed.manifests[name] for name in ("corpus", "base", "model")):
        assert manifest.digest in text
    assert "learning_rate: 0.0001" in text


def test_an_evaluation_of_an_earlier_model_with_the_same_files_is_labelled_as_this_one(
    sealed: Chain, tmp_path: Path
) -> None:
    report = shutil.copytree(sealed.paths["eval_grpo"], tmp_path / "report")
    write_manifest(report, "eval_report", sealed.manifests["eval_grpo"].facts | {"label": "dpo"})
    inputs = {"model": sealed.paths["model"], "reports.0": report}
    entries = {name: {"path": str(path), "digest": read_manifest(path).digest} for name, path in inputs.items()}
    assert [each.facts["label"] for each in reports(Job(tmp_path, "publish", "", {}, entries))] == ["grpo"]


def test_a_stage_that_left_the_model_as_it_was_does_not_end_the_chain(sealed: Chain, tmp_path: Path) -> None:
    """If all of GRPO's rewards are equal, its model is DPO's, and has DPO's history and evaluation."""
    before = sealed.manifests["model"]
    unchanged = shutil.copytree(sealed.paths["model"], tmp_path / "unchanged")
    write_manifest(unchanged, "hf_model", before.facts | {"label": "grpo-2"}, {}, {"model": before.digest})
    paths = {**sealed.paths, "unchanged": unchanged}
    inputs = {"model": "unchanged", "models.0": "base", "models.1": "model", "parts.corpus": "corpus"}
    inputs |= {"reports.0": "eval_base", "reports.1": "eval_grpo", "reports.2": "eval_grpo"}
    entries = {
        name: {"path": str(paths[key]), "digest": read_manifest(paths[key]).digest} for name, key in inputs.items()
    }
    job = Job(tmp_path / "job", "publish", "published_model", {}, entries)
    assert [link.title for link in chain(job)] == ["corpus", "base", "grpo"]
    files = ModelFolders(unchanged, unchanged)
    text = model_card(PublishSpec(), files, read_manifest(unchanged), chain(job), reports(job))
    assert "| metric | base | grpo | grpo-2 | better | measured on |" in text
    (index,) = ModelCard(text).data.to_dict()["model-index"]
    measured = [metric["type"] for result in index["results"] for metric in result["metrics"]]
    assert sorted(measured) == sorted(METRICS)


def test_the_card_shows_the_mean_and_the_spread_of_several_seeds_beside_the_single_runs(sealed: Chain) -> None:
    base, first = sealed.manifests["eval_base"], sealed.manifests["eval_grpo"]
    metrics = METRICS | {"sums.right": METRICS["sums.right"] | {"value": 0.6}}
    second = replace(first, facts={"label": "grpo-seed1", "model_digest": "another", "metrics": metrics})
    files = ModelFolders(sealed.paths["model"], sealed.paths["model"])
    text = model_card(PublishSpec(), files, sealed.manifests["model"], [], [base, first, second])
    assert "| sums.right | 50.0 % ± 1.0 | 50.0 % ± 1.0 | 60.0 % ± 1.0 | higher |" in text
    assert "| metric | grpo, 2 seeds |" in text and "| sums.right | 55.0 % ± 7.1 |" in text
    assert "the sample standard deviation" in text


def test_the_card_keeps_secrets_and_local_paths_to_itself(published: Path) -> None:
    text = (published / "README.md").read_text()
    assert "s3cr3t" not in text
    assert "/home/someone" not in text and "…/books" in text


def test_the_parents_come_before_their_children(sealed: Chain, tmp_path: Path) -> None:
    job = open_job(sealed.job(tmp_path / "job", SPEC, *ALL))
    assert [link.title for link in chain(job)] == ["corpus", "base", "grpo"]


def test_the_same_content_is_the_same_version(home: Path, sealed: Chain, tmp_path: Path) -> None:
    job = open_job(sealed.job(tmp_path / "job", SPEC, *ALL))
    work(job)
    first = read_manifest(job.output).digest
    (job.directory / "result.json").unlink()  # the state after a kill between the registration and the result
    (job.output / "manifest.json").unlink()
    work(job)
    again = open_job(sealed.job(tmp_path / "again", SPEC, *ALL))
    work(again)
    assert versions("baton-test") == ["1"]
    assert read_manifest(job.output).digest == read_manifest(again.output).digest == first


def test_the_same_model_beside_others_is_the_same_version(home: Path, sealed: Chain, tmp_path: Path) -> None:
    """Only the models that the card compares it with differ."""
    work(open_job(sealed.job(tmp_path / "job", SPEC, "model", "base", "corpus", "eval_base", "eval_grpo")))
    job = open_job(sealed.job(tmp_path / "other", SPEC, "model", "base", "corpus", "eval_grpo"))
    work(job)
    assert versions("baton-test") == ["1"]
    assert read_manifest(job.output).facts["registry_version"] == "1"


@pytest.mark.parametrize("changed", [{"license": "apache-2.0"}, {"description": "Another one."}])
def test_under_other_terms_it_is_another_version(
    home: Path, sealed: Chain, tmp_path: Path, changed: dict[str, str]
) -> None:
    work(open_job(sealed.job(tmp_path / "job", SPEC, "model")))
    work(open_job(sealed.job(tmp_path / "other", SPEC | changed, "model")))
    assert versions("baton-test") == ["1", "2"]


def test_made_of_other_text_it_is_another_version(home: Path, sealed: Chain, tmp_path: Path) -> None:
    """Each generation of a continuous training has its own version."""
    work(open_job(sealed.job(tmp_path / "job", SPEC, "model")))
    work(open_job(sealed.job(tmp_path / "other", SPEC, "model", "corpus")))
    assert versions("baton-test") == ["1", "2"]


@pytest.mark.parametrize("deleted", ["version", "files"])
def test_what_was_deleted_is_registered_again(home: Path, sealed: Chain, tmp_path: Path, deleted: str) -> None:
    job = open_job(sealed.job(tmp_path / "job", SPEC, "model", "base", "eval_base"))
    work(job)
    if deleted == "version":
        MlflowClient(tracking_uri()).delete_model_version("baton-test", "1")
    else:
        shutil.rmtree(job.output)
    again = open_job(sealed.job(tmp_path / "again", SPEC, "model", "base"))
    work(again)
    assert read_manifest(again.output).facts["registry_version"] == "2"


def test_of_equal_models_the_card_and_a_notice_say_which_was_chosen(home: Path, sealed: Chain, tmp_path: Path) -> None:
    job = open_job(sealed.job(tmp_path / "job", SPEC | {"best": "sums.right"}, *ALL))
    work(job)
    said = "base and grpo have the same sums.right, 50.0 % ± 1.0; grpo is the first of these in the run's order"
    (notice,) = map(json.loads, (job.directory / "notices.jsonl").read_text().splitlines())
    assert notice["text"].startswith(f"publish.best: {said}.") and "invalidates" not in notice
    assert said in (job.output / "README.md").read_text()
    assert read_manifest(job.output).fields["why"] == said
    assert "why" not in read_manifest(job.output).facts


def test_an_untuned_model_among_equals_invalidates_the_result(home: Path, sealed: Chain, tmp_path: Path) -> None:
    untuned = Chain(
        sealed.paths | {"model": sealed.paths["base"], "base": sealed.paths["model"]},
        sealed.manifests | {"model": sealed.manifests["base"], "base": sealed.manifests["model"]},
    )
    job = open_job(untuned.job(tmp_path / "job", SPEC | {"best": "sums.right"}, *ALL))
    work(job)
    (notice,) = map(json.loads, (job.directory / "notices.jsonl").read_text().splitlines())
    assert (
        notice["invalidates"] and "base is the first of these in the run's order, and was not tuned" in notice["text"]
    )


def test_a_repeated_job_moves_the_alias_back_and_keeps_its_files(home: Path, sealed: Chain, tmp_path: Path) -> None:
    job = open_job(sealed.job(tmp_path / "job", SPEC, *ALL))
    work(job)
    before = {path: path.stat().st_mtime_ns for path in job.output.rglob("*") if path.name != "manifest.json"}
    other = Chain({"model": sealed.paths["base"]}, {"model": sealed.manifests["base"]})
    work(open_job(other.job(tmp_path / "other", SPEC, "model")))
    client = MlflowClient(tracking_uri())
    assert client.get_model_version_by_alias("baton-test", "champion").version == 2
    work(job)
    assert client.get_model_version_by_alias("baton-test", "champion").version == 1
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_another_model_is_the_next_version(home: Path, sealed: Chain, tmp_path: Path) -> None:
    work(open_job(sealed.job(tmp_path / "job", SPEC, "model")))
    other = Chain({"model": sealed.paths["base"]}, {"model": sealed.manifests["base"]})
    work(open_job(other.job(tmp_path / "other", SPEC, "model")))
    assert versions("baton-test") == ["1", "2"]
    assert str(MlflowClient(tracking_uri()).get_model_version_by_alias("baton-test", "champion").version) == "2"


def test_weights_are_linked_and_small_files_copied(home: Path, tmp_path: Path, sealed: Chain) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"x" * (1 << 20))
    facts = sealed.manifests["model"].facts
    large = Chain({"model": model}, {"model": write_manifest(model, "hf_model", facts)})
    work(open_job(large.job(tmp_path / "job", {"name": "large"}, "model")))
    output = tmp_path / "job" / "output"
    assert output.joinpath("model.safetensors").samefile(model / "model.safetensors")
    assert not output.joinpath("config.json").samefile(model / "config.json")


def test_a_changed_model_is_refused(home: Path, tmp_path: Path, sealed: Chain) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    changed = Chain({"model": model}, {"model": write_manifest(model, "hf_model", {})})
    (model / "config.json").write_text("{ }")
    with pytest.raises(ArtifactError, match=r"config\.json has 3 bytes, not 2"):
        work(open_job(changed.job(tmp_path / "job", SPEC, "model")))
    assert versions("baton-test") == []


def test_a_registry_that_stays_away_is_an_error_with_a_way_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:s3cr3t@127.0.0.1:{free_port()}")
    waited: list[float] = []
    with pytest.raises(StageError, match="run the same command again") as refused:
        register(Publication("x", None, tmp_path, "d", "", {}), waited.append, patience_s=5)
    assert len(waited) >= 1
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("alias", ["latest", "v1", "V22"])
def test_an_alias_that_mlflow_keeps_for_itself_is_a_problem(alias: str) -> None:
    (problem,) = PublishSpec(alias=alias).problems()
    assert problem.path == "alias"


def test_the_front_matter_is_yaml(published: Path) -> None:
    front = (published / "README.md").read_text().split("---\n")[1]
    assert yaml.safe_load(front)["tags"] == ["baton", "grpo"]


@pytest.mark.parametrize("stored", ["now", "absolutely, as it was before"])
def test_a_home_that_was_moved_still_has_its_generations(
    home: Path, sealed: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    corpus = home / "jobs" / "corpus-1" / "output"
    shutil.copytree(sealed.paths["corpus"], corpus)
    facts = dict.fromkeys(("documents", "held_out_documents", "bytes", "held_out_bytes", "duplicates", "empty"), 1)
    manifest = write_manifest(corpus, "corpus", facts | {"invalid_utf8": 0})
    chain = Chain(sealed.paths | {"corpus": corpus}, sealed.manifests | {"corpus": manifest})
    work(open_job(chain.job(home / "jobs" / "publish-1", SPEC, "model", "corpus")))
    client = MlflowClient(tracking_uri())
    tags = client.get_model_version("baton-test", "1").tags
    assert tags["baton.part.corpus"] == f"{manifest.digest} home:jobs/corpus-1/output"
    if stored != "now":
        client.set_model_version_tag("baton-test", "1", "baton.part.corpus", f"{manifest.digest} {corpus}")

    home.rename(tmp_path / "moved")
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "moved"))
    version = version_at("baton-test", "champion")
    assert version and fetch(version) == tmp_path / "moved" / "jobs" / "publish-1" / "output"
    generation = champion("baton-test")
    assert generation and load(generation.part("corpus")).place == str(tmp_path / "moved/jobs/corpus-1/output")

"""A run that repeats post-training with other seeds."""

import re
import shutil
from pathlib import Path

import pytest

from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.data.artifact import Corpus
from tests.report.example import RATES, evaluation, made_of, make_report, model, seal

RIGHT = {"grpo": 0.75, "grpo-seed1": 0.80, "grpo-seed2": 0.85}  # the mean is 80.0 %, the sample standard deviation 5.0


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of base → grpo with `seeds: 3`."""
    root = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATON_HOME", str(root / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        facts = {"documents": 1, "held_out_documents": 1, "bytes": 5, "held_out_bytes": 5}
        corpus = seal(root / "corpus", Corpus, facts | {"duplicates": 0, "empty": 0, "invalid_utf8": 0})
        made = {"base": model(root, "base", {}, {})}
        made |= {label: model(root, label, {"model": made["base"]}, {}) for label in RIGHT}
        rates = {label: (right, *RATES["grpo"][1:]) for label, right in ({"base": 0.3} | RIGHT).items()}
        reports = {f"eval_{label}": evaluation(root, label, made[label], corpus, rates[label], 20) for label in made}
        return make_report(root / "job", made | reports)


@pytest.fixture(params=["report.md", "report.html"])
def text(request: pytest.FixtureRequest, output: Path) -> str:
    """Return the text of the report in the terminal, and the words of the cells on the page."""
    return " ".join(re.sub("<[^>]*>|[|]", " ", (output / request.param).read_text()).split())


def test_a_metric_has_its_mean_over_the_seeds_and_the_spread(text: str) -> None:
    assert "metric base grpo, 3 seeds reference" in text
    assert "sums.right 30.0 % 80.0 % ± 5.0 100.0 %" in text


def test_the_single_runs_stand_beside_it(text: str) -> None:
    assert "the mean ± the sample standard deviation (n − 1)" in text
    assert "metric model first seed seed + 1 seed + 2" in text
    assert "sums.right grpo 75.0 % 80.0 % 85.0 %" in text


def test_a_gain_has_a_spread_and_each_seeds_finding(text: str) -> None:
    gains = "metric grpo from base"
    assert gains in text and "sums.right ✓✓✓ +50.0 points ± 5.0" in text.partition(gains)[2]
    assert "grpo-seed2 against base, the model it started from" in text


def test_the_means_fit_a_terminal(output: Path) -> None:
    assert max(map(len, (output / "report.md").read_text().split("## What was made")[0].splitlines())) <= 140


def test_models_with_the_same_files_are_not_seeds_of_one(tmp_path: Path) -> None:
    """The evaluation that they share has the name of one of them, or of a model of an earlier run."""
    facts = {"documents": 1, "held_out_documents": 1, "bytes": 5, "held_out_bytes": 5}
    corpus = seal(tmp_path / "corpus", Corpus, facts | {"duplicates": 0, "empty": 0, "invalid_utf8": 0})
    dpo = model(tmp_path, "dpo", {}, {})
    grpo = shutil.copytree(dpo, tmp_path / "grpo")
    write_manifest(grpo, "hf_model", read_manifest(dpo).facts | {"label": "grpo"}, {}, {"model": made_of(dpo)})
    of_both = evaluation(tmp_path, "sft", dpo, corpus, RATES["dpo"])
    output = make_report(tmp_path / "job", {"dpo": dpo, "grpo": grpo, "eval_dpo": of_both, "eval_grpo": of_both})
    text = " ".join((output / "report.md").read_text().split())
    assert "| metric | dpo | grpo | reference |" in text
    assert "grpo has the same weights as the model it started from" in text
    assert "seeds" not in text

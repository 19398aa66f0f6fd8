"""The choice of a run's best model."""

from pathlib import Path
from typing import Any

import pytest

from baton.infra.tracking.execution import close_execution
from baton.tasks.choose.choose import work
from baton.tasks.choose.spec import ChooseSpec
from baton.tasks.choose.task import choose
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.models.artifact import HFModel
from tests.promote.made import MODEL, metric, run, seal

RIGHT, BITS = "sums.right", "bits_per_byte"
UNKNOWN = "sums.unknown"  # a metric for which neither more nor less is known to be better


def chosen(root: Path, by: str | dict[str, Any], **values: tuple[float, float]) -> str:
    """Return the label of the model that is chosen from models with these rewards and bits per byte."""
    inputs = {}
    for number, (label, (right, bits)) in enumerate(values.items()):
        model = seal(root / label, HFModel, MODEL | {"label": label}, {"model.safetensors": label})
        metrics = {RIGHT: metric(right), BITS: metric(bits, higher_is_better=False)}
        metrics[UNKNOWN] = metric(right, higher_is_better=None)
        facts = {"label": label, "model_digest": read_manifest(model).digest, "metrics": metrics}
        inputs[f"models_{number}"] = model
        inputs[f"reports_{number}"] = seal(root / f"eval-{label}", EvalReport, facts, {"content": label})
    output = run(work, HFModel, root / "choose", by if isinstance(by, dict) else {"metric": by}, **inputs)
    return str(read_manifest(output).facts["label"])


def test_of_several_seeds_the_best_single_model_is_taken(tmp_path: Path) -> None:
    values = {"sft": (0.6, 2.0), "sft-seed1": (0.6, 2.0), "grpo": (0.1, 2.1), "grpo-seed1": (0.9, 2.1)}
    assert chosen(tmp_path, RIGHT, **values) == "grpo-seed1"


def test_less_is_better_where_the_metric_says_so(tmp_path: Path) -> None:
    assert chosen(tmp_path, BITS, base=(0.5, 2.4), sft=(0.5, 2.2), grpo=(0.5, 2.3)) == "sft"


def test_of_equal_values_the_earliest_is_taken(tmp_path: Path) -> None:
    assert chosen(tmp_path, RIGHT, base=(0.5, 2.0), sft=(0.5, 2.0)) == "base"


def test_the_chosen_model_has_its_own_label_where_its_evaluation_was_another_models(tmp_path: Path) -> None:
    model = seal(tmp_path / "grpo", HFModel, MODEL | {"label": "grpo"}, {"model.safetensors": ""})
    facts = {"label": "dpo", "model_digest": read_manifest(model).digest, "metrics": {RIGHT: metric(0.5)}}
    report = seal(tmp_path / "eval", EvalReport, facts, {"content": ""})
    output = run(work, HFModel, tmp_path / "choose", {"metric": RIGHT}, models_0=model, reports_0=report)
    assert read_manifest(output).facts["label"] == "grpo"


def test_a_model_that_broke_is_never_the_best(tmp_path: Path) -> None:
    assert chosen(tmp_path, RIGHT, base=(float("nan"), 2.0), sft=(0.1, 2.0)) == "sft"


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_no_model_is_the_best_by_a_metric_that_is_no_number_for_any(tmp_path: Path, broken: float) -> None:
    with pytest.raises(
        StageError, match=r"sums\.right is (nan|inf) for .* 2 models; .*publish\.best .*: bits_per_byte"
    ):
        chosen(tmp_path, RIGHT, base=(broken, 2.0), sft=(broken, 2.1))


def test_a_metric_that_was_not_measured_is_refused_with_those_that_were(tmp_path: Path) -> None:
    with pytest.raises(
        StageError, match=r"publish\.best: 'sums\.left' is not a metric of the evaluation; set one of .*sums\.right"
    ):
        chosen(tmp_path, "sums.left", base=(0.5, 2.0))


def test_of_an_unknown_direction_there_is_no_best(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"sums\.unknown: name a metric of which more .*set `higher_is_better"):
        chosen(tmp_path, UNKNOWN, base=(0.5, 2.0), sft=(0.6, 2.0))


def test_the_base_of_a_chosen_adapter_is_where_the_run_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that trained the adapter had its base in another place."""
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    facts = MODEL | {"label": "sft", "base": {"digest": "0" * 64, "place": "/another/machine"}}
    adapter = seal(tmp_path / "sft", HFModel, facts, {"config.json": "{}"})
    measured = {"label": "sft", "model_digest": read_manifest(adapter).digest, "metrics": {RIGHT: metric(0.5)}}
    report = seal(tmp_path / "eval", EvalReport, measured, {"content": ""})

    best = choose(
        spec=ChooseSpec(metric=RIGHT),
        models=[HFModel.from_directory(adapter).with_base_at(str(tmp_path))],
        reports=[EvalReport.from_directory(report)],
    )

    assert best.base and best.base.place == str(tmp_path)
    close_execution()


@pytest.mark.parametrize("metric", ["sums.left", UNKNOWN])
def test_before_tuning_a_metric_that_cannot_select_a_model_is_refused(tmp_path: Path, metric: str) -> None:
    with pytest.raises(StageError, match=r"publish\.best: "):
        chosen(tmp_path, {"metric": metric, "before_tuning": True}, base=(0.5, 2.0))


def test_a_night_s_check_names_the_field_of_the_promotion(tmp_path: Path) -> None:
    spec = {"metric": "sums.left", "before_tuning": True, "field": "promotion.metric"}
    with pytest.raises(StageError, match=r"^promotion\.metric: 'sums\.left' is not a metric of the evaluation"):
        chosen(tmp_path, spec, base=(0.5, 2.0))


def test_before_tuning_the_value_may_be_no_number(tmp_path: Path) -> None:
    """A tuned model may have a finite value."""
    assert chosen(tmp_path, {"metric": RIGHT, "before_tuning": True}, base=(float("nan"), 2.0)) == "base"

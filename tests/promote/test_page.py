"""A decision's page, with its text and every metric of both models."""

from pathlib import Path

from baton.tasks.core.manifest import read_manifest
from baton.tasks.pages.deck import stage_page
from baton.tasks.pages.source import open_source
from baton.tasks.promote.artifact import Promotion
from baton.tasks.report.report import summary
from baton.tasks.report.spec import ReportSpec
from tests.pages.reading import Reading
from tests.promote.made import NEW, OLD, decided, model, report, seal


def test_a_decision_has_a_page_and_stands_first_in_the_report(tmp_path: Path) -> None:
    models = model(tmp_path / "candidate"), model(tmp_path / "champion")
    reports = report(tmp_path / "ours", models[0], {OLD: 2.1, NEW: 1.9}), report(tmp_path / "theirs", models[1])
    decision = decided(tmp_path / "decide", *reports)
    text = Reading(stage_page(decision)).text
    assert "Rejected: bits per byte on the old text is worse" in text
    digests = [read_manifest(path).digest[:12] for path in models]
    assert f"The candidate, base {digests[0]} and the champion, base {digests[1]}, item by item" in text
    for shown in (
        "bits_per_byte, old",
        "sums.right",
        "✗ surely more than +0.20 %, no less than -1.00 %",
        "✓ no less",
    ):
        assert shown in text
    _, result, *_ = summary(ReportSpec(), [open_source(decision)])
    assert "Rejected" in str(result)


def test_a_first_model_s_page_has_no_champion(tmp_path: Path) -> None:
    decision = decided(tmp_path / "decide", report(tmp_path / "ours", model(tmp_path / "candidate")))
    assert "Promoted: the first model" in Reading(stage_page(decision)).text


def test_a_promotion_says_how_the_aliases_stand(tmp_path: Path) -> None:
    facts = {
        "registry_name": "coder",
        "registry_version": "5",
        "outcome": "promoted",
        "champion": "5",
        "previous": None,
    }
    text = Reading(stage_page(seal(tmp_path / "promotion", Promotion, facts, {"promotion.json": "{}"}))).text
    assert "coder, version 5: promoted; champion is version 5, previous –." in text

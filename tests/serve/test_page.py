"""An endpoint's page after failures."""

import json
from pathlib import Path

from baton.tasks.pages.deck import stage_page
from baton.tasks.serve.artifact import Endpoint
from tests.pages.reading import Reading
from tests.report.example import seal, served

FACTS = {"label": "grpo", "model_digest": "ab" * 32, "requests_per_s": 0.0, "tokens_per_s": 0.0, "first_token_ms": 0.0}


def page(tmp_path: Path, told: dict[str, object]) -> Reading:
    return Reading(stage_page(seal(tmp_path / "endpoint", Endpoint, FACTS, files={"endpoint.json": json.dumps(told)})))


def test_failed_requests_stand_out_with_their_reason(tmp_path: Path) -> None:
    shown = page(tmp_path, served(failed=3))
    assert "Errors: Timeout" in shown.text
    assert "bad" in " ".join(shown.values("class"))


def test_without_a_load_there_is_no_table_of_it(tmp_path: Path) -> None:
    shown = page(tmp_path, served() | {"levels": [], "chat": "Hello yourself"})
    assert "a completion and a chat answered" in shown.text and "Hello yourself" in shown.text
    assert "Under load" not in shown.text

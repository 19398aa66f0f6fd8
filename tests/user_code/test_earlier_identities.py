"""Results are found that were keyed by the text of a function."""

import json
from pathlib import Path

import pytest

from baton.infra.process.launch import Engine, job_directory
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.run import _job_directory
from baton.tasks.user_code.functions import Function, earlier_identities

TEXT = "# why\ndef right(completions):\n    return [1.0]\n"
SOURCES = {"with its comments": TEXT, "without them": TEXT.removeprefix("# why\n")}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_a_result_that_was_keyed_by_the_text_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    spec = RewardSpec(function=Function(name="sums.py:right", source={"sums.py": TEXT}))
    before = spec.identity()
    before["function"] |= {"name": "sums.py:right", "source": {"sums.py": source}}
    assert before in [*earlier_identities(spec)]

    engine = Engine("count", "tests.stage.engines", "1")
    earlier = job_directory(engine, before, {})
    assert _job_directory(engine, spec, {}, {}) == job_directory(engine, spec.identity(), {}) != earlier
    (earlier / "output").mkdir(parents=True)
    (earlier / "output/manifest.json").write_text("{}")
    (earlier / "result.json").write_text(json.dumps({"digest": "a"}))
    assert _job_directory(engine, spec, {}, {}) == earlier

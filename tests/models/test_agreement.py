"""The comparison of the log-probabilities that two engines compute for the same tokens."""

import math
from pathlib import Path

import pytest

from baton.tasks.core.job import StageError
from baton.tasks.models.agreement import Probe, check_agreement, read_probe

PROBE = Probe([5, 6, 7], [-1.0, -2.0])


@pytest.mark.parametrize("logprobs", [[-1.0, -2.0], [-1.05, -1.95], [-1.0], []])
def test_those_of_the_same_model(logprobs: list[float]) -> None:
    """An engine with fewer positions returns fewer values."""
    check_agreement(PROBE, logprobs, "vLLM")


@pytest.mark.parametrize("logprobs", [[-1.0, -2.5], [-1.0, math.nan], [-math.inf, -2.0], [-1.0, -1e9]])
def test_those_of_another_model(logprobs: list[float]) -> None:
    with pytest.raises(StageError, match=r"vLLM does not compute the model .* of 3 tokens .* above 1\.1 \(token"):
        check_agreement(PROBE, logprobs, "vLLM")


def test_an_artifact_without_a_probe(tmp_path: Path) -> None:
    assert read_probe(tmp_path) is None
    (tmp_path / "record").mkdir()
    PROBE.write(tmp_path / "record")
    assert read_probe(tmp_path) == PROBE

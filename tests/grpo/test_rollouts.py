"""vLLM's weights follow the trainer's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT


@pytest.mark.usefixtures("vllm")
def test_after_a_sync_the_engine_answers_with_the_trainers_weights(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.grpo.rollouts", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    fresh, changed, synced = json.loads(ended.stdout.splitlines()[-1])
    assert fresh < 1.01
    assert changed > 1.1, "the engine does not have the old weights"
    assert synced < 1.05

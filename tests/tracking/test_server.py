"""An `mlflow server` process that dies."""

import time
from pathlib import Path

import pytest

from baton.infra.tracking.execution import begin_execution, flush
from baton.infra.tracking.record import tracked
from tests.tracking.conftest import Server, curve, runs
from tests.tracking.one_execution import write_points

pytestmark = pytest.mark.long

WAIT_S = 60.0


def test_a_server_that_dies_in_mid_training_gets_every_point_later_once(server: Server, tmp_path: Path) -> None:
    begin_execution("one", {})
    with tracked("pretrain", tmp_path / "job", spec={}, inputs={}) as record:
        write_points(tmp_path / "job", range(20))
        assert flush(WAIT_S)
        server.kill()
        started = time.monotonic()
        write_points(tmp_path / "job", range(20, 40), pause_s=0.1)
        assert not flush(WAIT_S)  # returns at once, since no server answers
        assert time.monotonic() - started < 20  # training continued
        record.log_output("checkpoint", "c" * 64, {})
    server.start()
    flush(WAIT_S)
    (run,) = runs("stage")
    assert curve(run, "loss") == [(step, 1 / (step + 1)) for step in range(40)]
    assert run.info.status == "FINISHED"
    assert run.data.tags["baton.output"] == "c" * 64

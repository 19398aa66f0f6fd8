"""Only one run at a time per model."""

import subprocess
import sys
import time

from baton.workflows.continuous_training.lock import exclusive

HOLD = "import sys; from baton.workflows.continuous_training.lock import exclusive\nwith exclusive('model', 'wait'): print('in', flush=True); sys.stdin.read()"


def holder() -> subprocess.Popen[str]:
    """Another process that is working on the model."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "in\n"
    return process


def test_a_run_that_may_not_wait_does_not_get_the_lock() -> None:
    with holder(), exclusive("model", "skip") as free:
        assert not free


def test_another_model_is_another_lock() -> None:
    with holder(), exclusive("other", "skip") as free:
        assert free


def test_a_run_waits_for_the_one_before() -> None:
    with holder() as first:
        second = subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        time.sleep(1.5)
        assert second.poll() is None
        assert first.stdin
        first.stdin.close()
        assert second.wait(timeout=60) == 0


def test_a_run_that_was_killed_holds_nothing() -> None:
    with holder() as first:
        first.kill()
        first.wait()
        with exclusive("model", "skip") as free:
            assert free

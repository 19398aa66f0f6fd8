"""Engines as real processes: success, failure, and no process left behind."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from baton.infra.errors import UserError
from baton.infra.process.launch import Engine, EngineFailed, job_directory, run_engine
from baton.tasks.core.manifest import verify
from tests.infra.launcher import request
from tests.processes import commands

PATIENCE_S = 60.0  # limit for tasks that take a second or two on an idle machine


def toy(name: str) -> Engine:
    return Engine("toy", f"tests.infra.engines.{name}", "1")


def launch(name: str, job_dir: Path, *, processes: int | None = None, **spec: object) -> Path:
    return run_engine(toy(name), job_dir, request(spec), title="toy", processes=processes)


@contextmanager
def launcher(name: str, job_dir: Path, *processes: str, **spec: object) -> Iterator[subprocess.Popen[str]]:
    """Run `launch` in a separate process, which can be killed."""
    command = ["tests.infra.launcher", toy(name).module, str(job_dir), json.dumps(spec), *processes]
    with subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def processes_of(job_dir: Path) -> list[psutil.Process]:
    return [process for process, command in commands(psutil.process_iter()).items() if str(job_dir) in command]


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:.0f} s"
        time.sleep(0.05)


def wait_until_ready(job_dir: Path) -> None:
    eventually((job_dir / "work" / "ready").exists, "the engine is at work")


def process_of(job_dir: Path, module: str) -> psutil.Process:
    (process,) = [
        process for process, command in commands(processes_of(job_dir)).items() if command[1:3] == ["-m", module]
    ]
    return process


# Success


def test_a_finished_engine_leaves_a_verified_artifact(tmp_path: Path) -> None:
    output = launch("writer", tmp_path, text="made")
    assert (output / "text.txt").read_text() == "made"
    assert verify(output).spec == {"text": "made"}


def test_a_notice_is_shown_and_stays_with_the_artifact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notices.jsonl").write_text('{"text": "of an earlier attempt"}\n')
    output = launch("writer", tmp_path, notice="3 rows are left out")
    assert "! toy: 3 rows are left out" in capsys.readouterr().err
    assert (output / "record" / "notices.jsonl").read_text() == '{"text": "3 rows are left out"}\n'


def test_an_engine_is_found_from_any_folder_whatever_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("tasks", "random"):
        Path(f"{name}.py").write_text("raise SystemExit('the user's own file')")
    verify(launch("writer", tmp_path / "job"))


def test_a_finished_job_is_not_started_again(tmp_path: Path) -> None:
    assert launch("writer", tmp_path) == launch("writer", tmp_path)
    assert (tmp_path / "work" / "starts").read_text() == "started\n"


def test_a_job_whose_output_is_gone_is_started_again(tmp_path: Path) -> None:
    output = launch("writer", tmp_path)
    (output / "manifest.json").unlink()
    verify(launch("writer", tmp_path))
    assert (tmp_path / "work" / "starts").read_text() == "started\n" * 2


def test_everything_that_the_engine_prints_is_in_its_log(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed):
        launch("failing", tmp_path, how="stage error")
    assert "about to fail" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("where", ["a bug", "a stage error", "a thread"])
def test_a_failure_is_written_without_the_secrets_in_its_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """An example is the message of a reward whose request was refused."""
    with pytest.raises(EngineFailed) as failed:
        launch("failing", tmp_path, how=f"address in {where}")
    files = [path.read_text() for path in tmp_path.glob("*") if path.is_file() and path.name != "spec.json"]
    shown = "\n".join([str(failed.value), capsys.readouterr().err, *files])
    assert "hunter22" not in shown and "401 for https://judge.example.org/v1?api_key=[redacted]" in shown


def test_a_second_copy_waits_and_takes_the_same_result(tmp_path: Path) -> None:
    with launcher("writer", tmp_path, seconds=2) as first, launcher("writer", tmp_path, seconds=2) as second:
        said = [each.communicate(timeout=PATIENCE_S)[1] for each in (first, second)]
    assert first.returncode == second.returncode == 0
    assert sum("waiting for its result" in each for each in said) == 1
    assert (tmp_path / "work" / "starts").read_text() == "started\n"


def test_the_place_of_a_job_is_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    engine, words, digests = toy("writer"), {"text": "a"}, {"corpus": "d1"}
    here = job_directory(engine, words, digests)
    assert here.parent == tmp_path / "jobs"
    assert here == job_directory(toy("writer"), dict(words), dict(digests))
    others = [
        job_directory(engine, {"text": "b"}, digests),
        job_directory(engine, words, {"corpus": "d2"}),
        job_directory(engine, words, {"tokens": "d1"}),
        job_directory(Engine("toy", engine.module, "2"), words, digests),
    ]
    assert len({here, *others}) == 5


# Failure


def test_what_a_person_can_act_on_is_said_without_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"toy: no prompt is left: take more modules") as failed:
        launch("failing", tmp_path, how="stage error")
    assert "Traceback" not in str(failed.value)


def test_a_bug_is_shown_with_the_end_of_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="ZeroDivisionError: division by zero") as failed:
        launch("failing", tmp_path, how="bug")
    assert "in _divide" in str(failed.value)
    assert str(tmp_path) in str(failed.value)


def test_an_engine_that_is_killed_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"was killed by SIGKILL .*out of memory") as failed:
        launch("failing", tmp_path, how="killed")
    assert "about to fail" in str(failed.value)


def test_an_engine_that_ends_without_a_word_is_shown_by_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="exit code 3"):
        launch("failing", tmp_path, how="silent")


def test_an_engine_that_exits_with_0_and_no_result_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EngineFailed, match=r"toy ended with exit code 0 and without a result, as after sys\.exit\(0\)"):
        launch("failing", tmp_path, how="exit 0")
    assert "✗ toy" in capsys.readouterr().err


def test_a_failure_is_not_remembered(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed):
        launch("failing", tmp_path, how="stage error")
    verify(launch("writer", tmp_path))


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("full disk", "OSError: "),
        ("full disk of an open file", "result.json could not be written: "),
    ],
)
def test_a_full_disk_is_said_to_be_full(tmp_path: Path, how: str, line: str) -> None:
    words = [sys.executable, "-m", "tests.infra.launcher", toy("failing").module, str(tmp_path / "job")]
    on_a_small_disk = f'mount -t tmpfs -o size=2m tmpfs {tmp_path} && exec {shlex.join(words)} "$0"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", on_a_small_disk, json.dumps({"how": how})]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1
    said = ended.stderr.partition("EngineFailed: ")[2].splitlines()
    assert re.match(
        r"toy: .*/job: no space left on device \([\d.]+ [kM]?B are free in .*\)\. Make room and run", said[0]
    )
    assert said[1:] == [f"  {line}[Errno 28] No space left on device", f"  (log: {tmp_path}/job/log.txt)"]


def test_a_gpu_without_memory_is_a_line_and_not_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"toy: the GPU's memory is full: lower layout\.micro_batch") as failed:
        launch("failing", tmp_path, how="no GPU memory")
    assert "CUDA out of memory. Tried to allocate 2.00 GiB" in str(failed.value)
    assert "Traceback" not in str(failed.value)


def test_a_bus_error_is_said_to_be_of_shared_memory(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"was killed by SIGBUS \(is /dev/shm full\?.*pod.resources.shared_memory"):
        launch("failing", tmp_path, how="no shared memory")


def test_a_refusal_of_infra_is_no_bug(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"toy: no folder can be made there\n") as failed:
        launch("failing", tmp_path, how="stopped")
    assert "Traceback" not in str(failed.value)


# Stopping


@pytest.mark.parametrize("given", ["nan", "inf", "-1", "soon", "1e9"])
def test_a_grace_period_without_end_is_refused(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_STOP_GRACE_S", given)
    with pytest.raises(UserError, match=f"BATON_STOP_GRACE_S={given}: seconds from SIGTERM to SIGKILL, such as 60"):
        launch("writer", tmp_path)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_launcher_lets_the_engine_save_and_leaves_nothing(tmp_path: Path, signum: signal.Signals) -> None:
    with launcher("sleeper", tmp_path) as process:
        wait_until_ready(tmp_path)
        process.send_signal(signum)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert "the same command continues" in said
    assert not processes_of(tmp_path)
    assert (tmp_path / "work" / "checkpoint").read_text() == "saved on SIGTERM"
    assert (launch("sleeper", tmp_path) / "text.txt").read_text() == "saved on SIGTERM"


def test_a_user_who_will_not_wait_is_not_kept_waiting(tmp_path: Path) -> None:
    with launcher("sleeper", tmp_path) as process:
        wait_until_ready(tmp_path)
        engine = process_of(tmp_path, toy("sleeper").module)
        engine.suspend()  # a suspended engine cannot save
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S / 2)
    assert not processes_of(tmp_path)


def test_a_killed_launcher_takes_its_engine_with_it(tmp_path: Path) -> None:
    with launcher("sleeper", tmp_path) as process:
        wait_until_ready(tmp_path)
        process.kill()
    eventually(lambda: not processes_of(tmp_path), "no process is left")
    assert (tmp_path / "work" / "checkpoint").read_text() == "saved on SIGTERM"


def test_nobody_starts_while_a_killed_launcher_s_engine_is_still_saving(tmp_path: Path) -> None:
    with launcher("sleeper", tmp_path) as process:
        wait_until_ready(tmp_path)
        process.kill()
    assert (launch("sleeper", tmp_path) / "text.txt").read_text() == "saved on SIGTERM"


def test_a_killed_engine_leaves_nothing(tmp_path: Path) -> None:
    with launcher("sleeper", tmp_path) as process:
        wait_until_ready(tmp_path)
        process_of(tmp_path, toy("sleeper").module).kill()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert "was killed by SIGKILL" in said
    assert not processes_of(tmp_path)


# Several processes


def test_torchrun_starts_the_same_words_in_every_rank(tmp_path: Path) -> None:
    output = launch("ranks", tmp_path, processes=2)
    assert (output / "total.txt").read_text() == "3 from 2 ranks"


@pytest.mark.parametrize(
    ("last_rank", "said"),
    [
        ("refuses", "toy: the last rank has no data: take fewer ranks"),
        ("raises", "ValueError: rank-specific trouble"),
        ("is killed", r"rank 1 was killed by SIGKILL"),
    ],
)
def test_one_failing_rank_ends_them_all(tmp_path: Path, last_rank: str, said: str) -> None:
    started = time.monotonic()
    with pytest.raises(EngineFailed, match=said):
        launch("ranks", tmp_path, processes=2, last_rank=last_rank)
    assert time.monotonic() - started < PATIENCE_S
    assert not processes_of(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_launcher(tmp_path: Path, signum: signal.Signals) -> None:
    with launcher("ranks", tmp_path, "2", last_rank="waits") as process:
        wait_until_ready(tmp_path)
        os.kill(process.pid, signum)
    eventually(lambda: not processes_of(tmp_path), "no process is left")


def test_no_rank_outlives_torchrun(tmp_path: Path) -> None:
    with launcher("ranks", tmp_path, "2", last_rank="waits") as process:
        wait_until_ready(tmp_path)
        process_of(tmp_path, "torch.distributed.run").kill()
        process.communicate(timeout=PATIENCE_S)
    eventually(lambda: not processes_of(tmp_path), "no process is left")


def test_a_job_s_folder_is_that_of_versions_without_the_namespace() -> None:
    modules = ("baton.tasks.rows.rows", "tasks.rows.rows")
    new, old = (job_directory(Engine("rows", module, "5"), {"a": 1}, {}) for module in modules)
    assert new == old

"""An engine that reports its start, starts a child and works until it is stopped. On SIGTERM it needs a moment to save;
a restarted engine finds the saved file and finishes."""

import signal
import subprocess
import sys
import time
from types import FrameType

from baton.tasks.core.job import Job, main


def work(job: Job) -> None:
    checkpoint = job.work / "checkpoint"
    if checkpoint.exists():
        job.output.mkdir(exist_ok=True)
        (job.output / "text.txt").write_text(checkpoint.read_text())
        job.finish()
        return

    def save(signum: int, frame: FrameType | None) -> None:
        time.sleep(0.5)
        checkpoint.write_text(f"saved on {signal.Signals(signum).name}")
        sys.exit(128 + signum)

    signal.signal(signal.SIGTERM, save)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(job.directory)])
    (job.work / "ready").touch()
    while True:
        time.sleep(0.1)


if __name__ == "__main__":
    main(work)

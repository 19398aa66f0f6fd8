"""An engine that writes the spec's text as an artifact after a delay, and counts its starts."""

import time

from baton.tasks.core.job import Job, main
from baton.tasks.core.spec import Spec


class WriterSpec(Spec):
    text: str = "hello"
    seconds: float = 0.0
    notice: str = ""


def work(job: Job) -> None:
    spec = job.spec(WriterSpec)
    with (job.work / "starts").open("a") as starts:
        starts.write("started\n")
    job.progress(1, 2, "lines", loss=1.5)
    time.sleep(spec.seconds)
    if spec.notice:
        job.notice(spec.notice)
    job.output.mkdir(exist_ok=True)
    (job.output / "text.txt").write_text(spec.text)
    job.metric(1, loss=1.5)
    job.finish()


if __name__ == "__main__":
    main(work)

"""Two toy engines in one module: `make` writes a text, `count` counts one of its letters. Each start appends the
stage's name to the file that TOY_STARTS names."""

import json
import os
from pathlib import Path

from pydantic import Field

from baton.tasks.core.job import Job, main
from baton.tasks.core.spec import StageSpec


class MakeSpec(StageSpec):
    """A text, and the number of its repetitions."""

    text: str = Field("ab", description="what to write")
    times: int = Field(1, ge=1, description="how often")
    author: str = Field("", description="a fact of the text")


class CountSpec(StageSpec):
    """The spec of a stage that counts a letter."""

    letter: str = Field("a", description="the letter to count")


def work(job: Job) -> None:
    with Path(os.environ["TOY_STARTS"]).open("a") as starts:
        starts.write(job.stage + "\n")
    job.output.mkdir(exist_ok=True)
    if job.stage == "make":
        make = job.spec(MakeSpec)
        (job.output / "text.txt").write_text(make.text * make.times)
        job.finish(letters=len(make.text) * make.times, **({"author": make.author} if make.author else {}))
    else:
        texts = [(job.input(name) / "text.txt").read_text() for name in job.inputs]
        found = sum(text.count(job.spec(CountSpec).letter) for text in texts)
        (job.output / "count.json").write_text(json.dumps(found))
        job.finish(found=found)


if __name__ == "__main__":
    main(work)

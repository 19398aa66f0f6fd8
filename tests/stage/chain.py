"""A DAG of two toy stages, run by Flyte in a separate process.

python -m tests.stage.chain MAKE_SPEC COUNT_SPEC [MAKE_SPEC] prints the two artifacts; with a third spec, another
text is made and counted.
"""

import json
import os
import sys
from typing import NamedTuple

from flytekit import dynamic, workflow

from baton import images
from baton.infra.process.launch import Engine
from baton.tasks.artifacts import Artifact
from baton.tasks.run import run
from baton.tasks.stage import stage
from baton.tasks.stage_task import StageTask
from baton.workflows.dag.call import Calls
from baton.workflows.dag.tasks import TASKS
from baton.workflows.dag.walk import walk
from tests.stage.engines import CountSpec, MakeSpec

MAKE = Engine("make", "tests.stage.engines", version="1")
COUNT = Engine("count", "tests.stage.engines", version="1")


class Text(Artifact):
    """The text of the stage `make`."""

    kind = "text"
    letters: int


class Count(Artifact):
    """The number of occurrences of a letter in a text."""

    kind = "count"
    found: int


@stage(MAKE, image=images.DATA)
def make(spec: MakeSpec) -> Text:
    """Make the text."""
    return run(MAKE, Text, spec)


@stage(COUNT, image=images.DATA)
def count(spec: CountSpec, text: Text, more: list[Text]) -> Count:
    """Count a letter in the text."""
    return run(COUNT, Count, spec, text=text, more=more)


class Made(NamedTuple):
    text: Text
    counted: Count


@workflow
def chain(make_spec: MakeSpec, count_spec: CountSpec) -> Made:
    """Make a text, then count its letter."""
    text = make(spec=make_spec)
    return Made(text, count(spec=count_spec, text=text, more=[]))


@workflow
def longer_chain(make_spec: MakeSpec, count_spec: CountSpec, more_spec: MakeSpec) -> Made:
    """Make two texts, then count both."""
    text = make(spec=make_spec)
    return Made(text, count(spec=count_spec, text=text, more=[make(spec=more_spec)]))


@dynamic
def calls(make_spec: MakeSpec, count_spec: CountSpec) -> Made:
    """Return the same stages as calls of a DAG, which know their inputs."""
    dag = Calls()
    text = dag.add("text", "make", make_spec)
    dag.add("count", "count", count_spec, text=text, more=[])
    made = walk(dag)
    return Made(made["text"], made["count"])


if __name__ == "__main__":
    TASKS |= {task.name.rpartition(".")[2]: task for task in (make, count) if isinstance(task, StageTask)}
    specs = MakeSpec.model_validate_json(sys.argv[1]), CountSpec.model_validate_json(sys.argv[2])
    more = [MakeSpec.model_validate_json(words) for words in sys.argv[3:]]
    if os.environ.get("TOY_DAG") == "True":
        made = calls(make_spec=specs[0], count_spec=specs[1])
    else:
        made = longer_chain(*specs, *more) if more else chain(*specs)
    print(json.dumps([{"path": each.place, **each.facts()} for each in made]))

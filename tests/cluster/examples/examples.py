"""Tiny workflows for the tests of the propeller. They use nothing of Baton, and form a separate project (no
__init__.py)."""
# mypy: disable-error-code="no-any-return"

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from flytekit import Cache, HashMethod, Resources, Secret, current_context, dynamic, task, workflow
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.extend import TaskPlugins
from flytekit.types.directory import FlyteDirectory


@task
def square(n: int) -> int:
    return n * n


@task
def total(numbers: list[int], more: int | None = None) -> int:
    return sum(numbers) + (more or 0)


@dynamic
def squares(count: int) -> int:
    return total(numbers=[square(n=n) for n in range(count)])


@dynamic
def nested(count: int) -> int:
    return total(numbers=[squares(count=count), square(n=count)], more=100)


@workflow
def a_nested_dynamic(count: int) -> int:
    return nested(count=count)


@task
def folder(word: str) -> FlyteDirectory:
    path = Path("made")
    path.mkdir()
    (path / "word.txt").write_text(word)
    return FlyteDirectory(str(path))


@task
def joined(folders: list[FlyteDirectory]) -> str:
    return " ".join((Path(each.download()) / "word.txt").read_text() for each in folders)


@workflow
def a_list_of_folders(first: str, second: str) -> str:
    return joined(folders=[folder(word=first), folder(word=second)])


@task
def counting(to: int) -> int:
    """Count slowly from the checkpoint on. Returns the number at which this attempt began."""
    checkpoint = current_context().checkpoint
    assert checkpoint
    found = checkpoint.read()
    began = int(found) if found else 0
    if not found:
        checkpoint.write(str(to).encode())
        print("counted", flush=True)
        time.sleep(600)
    return began


@workflow
def a_count(to: int) -> int:
    return counting(to=to)


Word = Annotated[str, HashMethod(lambda text: str(len(text)))]  # the cache treats words of the same length as equal


@task
def word(text: str) -> Word:
    return text


@task(cache=Cache(version="1", ignored_inputs=("how",)))
def shouted(text: Word, how: str) -> str:
    return text.upper()


@workflow
def of_a_constant(text: str, how: str) -> str:
    """Pass on a constant of the execution, which has no hash."""
    return shouted(text=text, how=how)


@workflow
def of_a_promise(text: str, how: str) -> str:
    return shouted(text=word(text=text), how=how)


@task(retries=1)
def refusing(recoverable: bool) -> None:
    raise FlyteRecoverableException("not now") if recoverable else ValueError("never")


@workflow
def a_refusal(recoverable: bool) -> None:
    refusing(recoverable=recoverable)


@task(
    requests=Resources(cpu="1", mem="1Gi"),
    interruptible=True,
    secret_requests=[Secret(group="tests", key="WORD", env_var="SECRET_WORD"), Secret(group="tests", key="NONE")],
)
def looking() -> dict[str, str]:
    """Return the environment that a pod sees."""
    return dict(os.environ) | {"here": str(Path.cwd()), "files": " ".join(map(str, Path("/tmp").iterdir()))}


@workflow
def a_look() -> dict[str, str]:
    return looking().with_overrides(limits=Resources(mem="2Gi"), retries=4)


@dataclass
class Elsewhere:
    """Marks a task that the connector runs."""


class ElsewhereTask(PythonFunctionTask[Elsewhere]):
    def __init__(self, task_config: Elsewhere, task_function: Any, **words: Any) -> None:
        super().__init__(task_config, task_function, task_type="skypilot", **words)


TaskPlugins.register_pythontask_plugin(Elsewhere, ElsewhereTask)


@task(task_config=Elsewhere())
def rented(outcome: str) -> str:
    return outcome


@workflow
def placed(outcome: str) -> str:
    return rented(outcome=outcome)

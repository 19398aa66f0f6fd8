"""Find the modules that the packages of tasks/ declare, so that there is no list of them elsewhere."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

TASKS = Path(__file__).parents[1]


def modules(name: str) -> Iterator[ModuleType]:
    """Yield the module with this name of each package that has it, such as `task`: baton.tasks.convert.task, …"""
    for file in sorted(TASKS.glob(f"*/{name}.py")):
        yield import_module(f"baton.tasks.{file.parent.name}.{name}")

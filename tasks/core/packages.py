"""Find what the packages of tasks/ declare, so that no list of them is kept elsewhere."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

TASKS = Path(__file__).parents[1]


def modules(name: str) -> Iterator[ModuleType]:
    """The module with this name of each package that has one, such as `task`: tasks.convert.task, …"""
    for file in sorted(TASKS.glob(f"*/{name}.py")):
        yield import_module(f"{TASKS.name}.{file.parent.name}.{name}")

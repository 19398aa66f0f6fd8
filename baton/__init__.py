"""The namespace of Baton's code: baton.workflows, baton.tasks, baton.infra and baton.images.

In the repository these packages are folders at the top, to which this folder has links. A wheel has their files here.
"""

from pathlib import Path

HERE = Path(__file__).parent
IMPORTED_FROM = HERE.parent
# entries of PYTHONPATH with which another process of this Python finds this package in any working directory
SEARCH_PATH = [] if IMPORTED_FROM.name in ("site-packages", "dist-packages") else [str(IMPORTED_FROM)]

# Flyte's archive of the code, which pods have, leaves links out.
if not (HERE / "tasks").exists():
    __path__.append(str(IMPORTED_FROM))

"""The source code of flytekit that infra/flyte/install.py changes."""

import json
import subprocess
import sys

import pytest

from baton.infra.flyte.install import VERSION, Change, changes

SOURCES = """
import inspect, json
from pkgutil import resolve_name
from blake3 import blake3
from baton.infra.flyte.install import changes
names = [name for change in changes() for name in change.replaces]
sources = {name: inspect.getsource(resolve_name(f"flytekit.{name}")) for name in names}
print(json.dumps({name: blake3(source.encode()).hexdigest(8) for name, source in sources.items()}))
"""


@pytest.fixture(scope="module")
def digests() -> dict[str, str]:
    """Return the digests of flytekit's source code, from a process that has not changed it."""
    done = subprocess.run([sys.executable, "-c", SOURCES], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("change", changes(), ids=lambda change: ", ".join(change.replaces))
def test_flytekit_has_the_source_that_a_change_was_written_for(change: Change, digests: dict[str, str]) -> None:
    """If this fails after an upgrade, compare the function with that of VERSION, adapt the change, and then update the
    digest and VERSION."""
    assert {name: digests[name] for name in change.replaces} == change.replaces, f"differs from {VERSION}"

"""The placement of stages on rented machines, and the values that tests compare."""

import os
from hashlib import blake2b
from typing import Any

from tests.placement.cloud.account import BUCKET
from tests.placement.cloud.world import Cloud
from tests.placement.runs import Run
from tests.placement.world import BIN, until

MIDDLE = {"steps": 1000, "checkpoints": {"every": 100}, "validate_every": 500}
LEFT_S = 60.0  # the time after which an ended run costs nothing any more


def rented(*infra: str, **more: Any) -> dict[str, Any]:
    """A placement on the cheapest machine with two CPUs, spot first, as in docs/cloud.md."""
    words = {"infra": list(infra or ("aws",)), "cpus": 2, "spot": "spot_first", "storage": storage()}
    return {"placement": words | {"setup": f". {BIN}/activate"} | more}


def storage() -> str:
    """A folder in the bucket for this test alone, so that no run finds another test's results."""
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" (")[0]
    return f"s3://{BUCKET}/{blake2b(test.encode(), digest_size=6).hexdigest()}"


def full(*places: str) -> dict[str, int | str]:
    """Return a capacity table in which these places are full."""
    return dict.fromkeys(places, 0)


def region_of(run: Run) -> str:
    return str(run.record().placed["region"])


def nothing_is_left(aws: Cloud) -> None:
    until(aws.is_empty, f"nothing is left: {aws.instances()}", LEFT_S)

"""A process that runs SkyPilot's optimizer on this folder's catalogs, controlled by lines of JSON.

It has a separate home, since SkyPilot keeps its state there and reads it at import. The input is a placement. The
output is the order in which SkyPilot tries the places of Baton's task, if each place that was chosen turns out to be
full.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Optimizer:
    """A client of the optimizer's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def order(self, **placement: Any) -> list[dict[str, Any]]:
        """Return the places for a placement. Each has its place, spot, price (of all nodes, US dollars an hour),
        recorded (the price that the connector finds for it) and planned (the plan's text for the same rank)."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(placement) + "\n")
        self._process.stdin.flush()
        found: list[dict[str, Any]] = json.loads(self._process.stdout.readline())
        return found

    def places(self, **placement: Any) -> list[str]:
        return [each["place"] for each in self.order(**placement)]


@contextmanager
def optimizer(home: Path) -> Iterator[Optimizer]:
    shutil.copytree(HERE / "catalogs", home / ".sky/catalogs")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.placement.optimizer"],
        env=os.environ | {"HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Optimizer(process)
        assert process.stdin
        process.stdin.close()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SkyPilot prints to stdout

    from sky import check, clouds, global_user_state
    from sky.clouds.cloud import CloudCapability

    global_user_state.initialize_and_get_db()
    global_user_state.set_allowed_clouds(check._get_workspace_allowed_clouds("default"), "default")
    enabled = [repr(cloud) for cloud in (clouds.AWS(), clouds.GCP(), clouds.Lambda())]
    for capability in (CloudCapability.COMPUTE, CloudCapability.STORAGE):
        global_user_state.set_enabled_clouds(enabled, capability, "default")
    for line in sys.stdin:
        print(json.dumps(_order(json.loads(line), enabled)), file=answers, flush=True)


def _order(words: dict[str, Any], enabled: list[str]) -> list[dict[str, Any]]:
    import sky
    from sky.exceptions import ResourcesUnavailableError
    from sky.jobs.controller import _add_k8s_annotations
    from sky.optimizer import Optimizer as Sky
    from sky.schemas.api.responses import ManagedJobRecord
    from sky.utils.resources_utils import format_resource

    from baton.infra.placement.config import Placement
    from baton.infra.placement.prices import offers, ordered
    from baton.infra.placement.record import price_per_hour

    placement = Placement.model_validate(words)
    planned = [offer.text() for offer in offers(placement, most=1000)]
    found: list[dict[str, Any]] = []
    full: list[sky.Resources] = []
    while True:
        resources = ordered(placement, None, enabled)
        task = sky.Task.from_yaml_config({"run": "true", "num_nodes": placement.nodes, "resources": resources})
        _add_k8s_annotations(task, 1)  # as the controller of managed jobs does
        with sky.Dag() as dag:
            dag.add(task)
        try:
            Sky.optimize(dag, blocked_resources=full, quiet=True)
        except ResourcesUnavailableError:
            return found
        best = task.best_resources
        assert best is not None
        record = ManagedJobRecord(
            cloud=str(best.cloud),
            region=best.region,
            zone=best.zone,
            accelerators=best.accelerators,
            cluster_resources_full=f"{placement.nodes}x{format_resource(best)[1]}",
        )
        found.append(
            {
                "place": f"{best.cloud}/{best.region} {best.instance_type}".lower(),
                "spot": best.use_spot,
                "price": best.get_cost(3600) * placement.nodes,
                "recorded": price_per_hour(record),
                "planned": planned[len(found)] if len(found) < len(planned) else None,
            }
        )
        full.append(best)


if __name__ == "__main__":
    main()

"""The SkyPilot job of a Flyte task: on every machine, the same command that a Flyte pod would run."""

import json
import os
import shlex
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from baton.infra.errors import UserError
from baton.infra.paths import QUIET
from baton.infra.placement.config import MACHINE_FAULT, Placement
from baton.infra.placement.machine import ATTEMPT, NODES, RESTARTS, START
from baton.infra.storage.buckets import is_bucket
from baton.infra.tracking.redact import redact
from baton.infra.tracking.remote_run import CODE, JOB
from baton.infra.tracking.store import passed_on

OUTPUT_PREFIX = "BATON_OUTPUT_PREFIX"
STORAGE = "BATON_STORAGE"
PASSED_ON = ("HF_HUB_OFFLINE", "MLFLOW_EXPERIMENT_NAME")
SECRETS = ("HF_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
# fsspec's and Flyte's settings of a bucket: credentials and endpoints
STORAGE_SECRETS = (
    *(f"AWS_{name}" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "ENDPOINT_URL")),
    *(f"AWS_{name}" for name in ("ENDPOINT_URL_S3", "REGION", "DEFAULT_REGION")),
    *(f"FLYTE_AWS_{name}" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT")),
    *(f"AZURE_STORAGE_{name}" for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN", "CONNECTION_STRING")),
    *(f"AZURE_{name}" for name in ("TENANT_ID", "CLIENT_ID", "CLIENT_SECRET")),
    *(f"FLYTE_AZURE_{name}" for name in ("STORAGE_ACCOUNT_NAME", "STORAGE_ACCOUNT_KEY")),
    *(f"FLYTE_AZURE_{name}" for name in ("TENANT_ID", "CLIENT_ID", "CLIENT_SECRET")),
    "GOOGLE_CLOUD_PROJECT",
)
GOOGLE_FILE, GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS", "BATON_GOOGLE_KEY"  # a local path, and the file's content
# SkyPilot (0.14.1) writes a job's script with its secrets into a command line of ssh, which others on both machines can
# read, if the script is shorter than this, and else into a file. The filler can go once SkyPilot always uses a file.
FILLER, FILLER_LENGTH = "BATON_FILLER", 100 * 1024

# All that the job writes on a machine is in one folder, which is removed at the end: a Slurm machine outlives the job.
# The shell forwards SIGTERM, and waits until the stage has saved; a machine lost in this way is not counted as a fault.
# If the code could not be fetched, nothing has run, and the command is repeated: Flyte's command itself does not retry,
# and reports "Forbidden" for any error.
RUN = f"""\
unset {FILLER}
here="$HOME/baton-{{attempt}}-$SKYPILOT_NODE_RANK"
rm -rf "$here" && mkdir -p "$here/code" || exit 1
trap 'rm -rf "$here"' EXIT
if [ -n "${GOOGLE_KEY}" ]; then
  export {GOOGLE_FILE}="$here/google.json"
  (umask 077; printf '%s' "${GOOGLE_KEY}" > "${GOOGLE_FILE}")
  unset {GOOGLE_KEY}
fi
{{setup}}
set +e
export BATON_HOME={{home}} NODE_RANK="$SKYPILOT_NODE_RANK" {START}="$(cat /proc/sys/kernel/random/uuid)"
export MASTER_ADDR="${{{{SKYPILOT_NODE_IPS%%$'\n'*}}}}" MASTER_PORT={{port}}
cd "$here/code" || exit 1
stopped=
trap 'stopped=1; kill -TERM $stage' TERM INT
for pause in 5 30 0; do
  {{command}} &
  stage=$!
  while kill -0 $stage 2>/dev/null; do wait $stage; done
  wait $stage
  ended=$?
  [ $ended -eq 1 ] && [ -z "$stopped" ] && [ ! -e infra/placement/machine.py ] || break
  sleep $pause
done
[ -z "$stopped" ] || [ $ended -eq 0 ] || exit {MACHINE_FAULT}
[ -e infra/placement/machine.py ] || exit $ended
python3 -m baton.infra.placement.machine $ended
exit $?
"""


@dataclass(frozen=True)
class Order:
    """The connector's order for a job: the placement from the input `options`, the rest from the task's template."""

    placement: dict[str, Any]
    storage: str
    execution: str  # tracked execution that the job belongs to
    code: dict[str, str]  # code version: the job's machine has no git checkout
    environment: dict[str, str] = field(default_factory=dict)  # the task's environment variables


def sky_task(
    name: str, order: Order, resources: dict[str, Any], command: list[str], output_prefix: str
) -> dict[str, Any]:
    """SkyPilot's YAML for a job on `resources` (baton.infra.placement.prices.ordered). Secrets come from this process's
    environment. Raises UserError."""
    placement = Placement.model_validate(order.placement)
    places = [choice.get("infra", "") for choice in resources.get("ordered", [])]
    if place := placement.out_of_reach(order.storage, filter(None, places)):
        raise UserError(
            f"machines of {place} cannot reach {order.storage}, Baton's home: set placement.storage, or "
            "BATON_STORAGE, to a bucket such as s3://my-bucket/baton"
        )
    attempt = blake2b(output_prefix.encode(), digest_size=8).hexdigest()
    limit_s = seconds(placement)
    limited = [*(["timeout", "--kill-after=90", f"{limit_s:.0f}"] if limit_s else []), *command]
    run = RUN.format(
        setup=placement.setup or "",
        home='"$here/home"' if is_bucket(order.storage) else shlex.quote(order.storage),
        port=20000 + int(attempt[:4], 16) % 10000,  # two jobs may share a machine
        attempt=attempt,
        command=shlex.join(limited),
    )
    secrets = _secrets(placement, order, output_prefix)
    envs = {word: os.environ[word] for word in PASSED_ON if word in os.environ}
    envs |= {word: value for word, value in order.environment.items() if word not in secrets}
    envs |= {JOB: name, OUTPUT_PREFIX: output_prefix, "BATON_EXECUTION": order.execution, CODE: json.dumps(order.code)}
    envs |= {STORAGE: order.storage, ATTEMPT: attempt, NODES: f"{placement.nodes}", RESTARTS: f"{placement.restarts}"}
    return {
        "name": name,
        "num_nodes": placement.nodes,
        "envs": QUIET | envs | {"FLYTE_FAIL_ON_ERROR": "true"},
        "secrets": secrets,
        "resources": resources,
        "run": run,
    }


def _secrets(placement: Placement, order: Order, output_prefix: str) -> dict[str, str]:
    """The job's secrets for SkyPilot: those in the task's environment, those in this process's environment that the
    job, its storage and its placement need, and the filler if there are any. Raises UserError."""
    environment = os.environ | order.environment
    if missing := [name for name in placement.secrets if not environment.get(name)]:
        where = "where the job is started: here, or in the connector's environment on a Flyte cluster"
        raise UserError(f"placement.secrets has {', '.join(missing)}, not set as an environment variable {where}")
    secret_names = [name for name, value in order.environment.items() if redact(value, name) != value]
    names = [*SECRETS, *placement.secrets, *secret_names]
    secrets = passed_on(environment.get("MLFLOW_TRACKING_URI", ""))
    if is_bucket(order.storage) or is_bucket(output_prefix):
        names += STORAGE_SECRETS
        if environment.get(GOOGLE_FILE):
            secrets[GOOGLE_KEY] = Path(environment[GOOGLE_FILE]).expanduser().read_text()
    secrets |= {name: environment[name] for name in names if environment.get(name) and name not in secrets}
    return secrets | ({FILLER: "x" * FILLER_LENGTH} if secrets else {})


def seconds(placement: Placement) -> float | None:
    """The job's time limit in seconds, as far as it is known without a machine: at the highest allowed price."""
    hours = [placement.time_limit_h] if placement.time_limit_h else []
    if placement.max_price_per_run and placement.max_price_per_hour:
        hours.append(placement.max_price_per_run / placement.max_price_per_hour)
    return min(hours) * 3600 if hours else None

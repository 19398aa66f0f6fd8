"""The pod of a Flyte task: its stage's default, parts of which each call may replace."""

from typing import Any

from flytekit import Secret
from flytekit.models.security import SecurityContext
from flytekit.models.task import Container, K8sPod

from baton.infra.errors import UserError
from baton.infra.pod_spec import SECRETS, PodSpec, short_of
from baton.infra.process.launch import STOP_GRACE
from baton.infra.progress import say

PRIMARY = "primary"  # the container's name in our pod specs


def warn_of_missing_resources(title: str, pod: PodSpec) -> None:
    """Print the resources that this pod lacks, since a cluster's limits silently lower a request."""
    if missing := short_of(pod.resources):
        say(f"{title}: this pod has {', '.join(missing)}; see Flyte's task_resources.limits")


def secret(name: str) -> Secret:
    """Return a Flyte secret that is an environment variable."""
    return Secret(group=SECRETS, key=name, env_var=name, mount_requirement=Secret.MountType.ENV_VAR)


def security_context(pod: PodSpec) -> SecurityContext | None:
    """Return the secrets of a pod, if it has any."""
    return SecurityContext(secrets=[secret(name) for name in pod.secrets]) if pod.secrets else None


def k8s_pod(pod: PodSpec, container: Container) -> K8sPod:
    """Build a pod from plain values, since flytekit's PodTemplate needs the Kubernetes library in every image."""
    grace_s = pod.termination_grace_period_seconds
    grace = {} if grace_s is None else {STOP_GRACE: str(grace_s)}
    env = [{"name": name, "value": value} for name, value in ((container.env or {}) | grace).items()]
    primary: dict[str, Any] = {"name": PRIMARY, "image": container.image, "args": container.args, "env": env}
    return K8sPod(pod_spec=pod.pod_spec() | {"containers": [primary]})


def check_one_template(stage: str, templates: int) -> None:
    """Raise UserError for several templates with one name, of which Flyte would silently use the first."""
    if templates > 1:
        raise UserError(
            f"{stage}: runs several times in this DAG. On a Flyte cluster, either all or none of these must have "
            "a placement, and pod.secrets, node_selector, tolerations and termination_grace_period_seconds must be the "
            "same: give all of them the same values"
        )

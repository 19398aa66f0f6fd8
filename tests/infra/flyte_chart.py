"""The pod that Flyte's chart renders from its values, without the parts that are independent of the values
(environment, ports, mounts).

Source: charts/flyte-binary/templates/deployment.yaml of v1.16.8; with our values it was compared with Helm's rendering.
"""

from typing import Any

PROBE = {"httpGet": {"path": "/healthcheck", "port": "http"}, "initialDelaySeconds": 30}
NAMED = ("startupProbe", "livenessProbe", "readinessProbe", "resources", "securityContext")


def pod_of_flyte(values: Any, auth: bool = False) -> dict[str, Any]:
    """Return the pod of the Deployment. `auth` enables configuration.auth, which adds an init container."""
    given = values["deployment"]
    context = {**given.get("podSecurityContext", {})}
    context = context if context.pop("enabled", False) else {}
    main = {"name": "flyte", "livenessProbe": PROBE, "readinessProbe": PROBE}
    main |= {name: given[name] for name in NAMED if given.get(name)}
    volumes: list[Any] = [{"name": name, "projected": {}} for name in ("cluster-resource-templates", "config")]
    return {
        **given.get("extraPodSpec", {}),
        "securityContext": context,
        "initContainers": [_before("wait-for-db", "waitForDB", given)]
        + ([_before("gen-admin-auth-secret", "genAdminAuthSecret", given)] if auth else []),
        "containers": [main],
        "volumes": [*volumes, {"name": "state", "emptyDir": {}}],
    }


def _before(name: str, key: str, given: Any) -> dict[str, Any]:
    context = given.get(key, {}).get("securityContext")
    return {"name": name, "resources": given.get("resources", {})} | ({"securityContext": context} if context else {})

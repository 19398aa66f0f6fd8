"""Kubernetes' pod security standard "restricted", as of 1.34, which includes "baseline", without the fields for
Windows.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards and k8s.io/pod-security-admission/policy.
"""

from collections.abc import Iterator
from typing import Any

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}
SELINUX = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
PROFILES = {"RuntimeDefault", "Localhost"}


def violations(pod: Any) -> list[str]:
    """Return the fields of a pod's spec that the standard refuses, each with its value."""
    return [*_of_pod(pod)] + [
        f"{name} {found}" for name, each in _containers(pod) for found in _of_container(pod, each)
    ]


def _containers(pod: Any) -> Iterator[tuple[str, Any]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from ((each["name"], each) for each in pod.get(kind, ()))


def _of_pod(pod: Any) -> Iterator[str]:
    context = pod.get("securityContext", {})
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    for volume in pod.get("volumes", ()):
        if not volume.keys() & VOLUMES:
            yield f"volume {volume}"
    yield from (f"sysctl {each['name']}" for each in context.get("sysctls", ()) if each["name"] not in SYSCTLS)
    yield from _of_both(context)


def _of_both(context: Any) -> Iterator[str]:
    """Check the fields that the security contexts of pods and containers share, which may be undefined."""
    if context.get("runAsUser") == 0:
        yield "runAsUser 0"
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in PROFILES:
        yield f"appArmorProfile {context['appArmorProfile']}"
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type") not in SELINUX or selinux.get("user") or selinux.get("role"):
        yield f"seLinuxOptions {selinux}"
    if context.get("seccompProfile", {}).get("type", "RuntimeDefault") not in PROFILES:
        yield f"seccompProfile {context['seccompProfile']}"


def _of_container(pod: Any, container: Any) -> Iterator[str]:
    of_pod, own = pod.get("securityContext", {}), container.get("securityContext", {})
    yield from _of_both(own)
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()) or {*capabilities.get("add", ())} - {"NET_BIND_SERVICE"}:
        yield f"capabilities {capabilities}"
    if own.get("procMount", "Default") != "Default":
        yield f"procMount {own['procMount']}"
    if own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot"
    if "seccompProfile" not in {**of_pod, **own}:
        yield "seccompProfile undefined"
    yield from (f"hostPort {port['hostPort']}" for port in container.get("ports", ()) if port.get("hostPort"))
    hooks = [container.get(f"{name}Probe", {}) for name in ("startup", "readiness", "liveness")]
    for hook in [*hooks, *container.get("lifecycle", {}).values()]:
        for action in hook.values():
            if isinstance(action, dict) and action.get("host"):
                yield f"host {action['host']}"

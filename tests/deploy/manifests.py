"""Looking into manifests, as the API server and the kubelet would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

SCHEMAS = Path(__file__).parent / "schemas"


def documents(text: str) -> list[Manifest]:
    """The objects of a stream of YAML documents."""
    return [each for each in yaml.safe_load_all(text) if each is not None]


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def identity(manifest: Manifest) -> tuple[str, str, str, str]:
    """What the API server tells objects apart by."""
    metadata = manifest["metadata"]
    group = manifest["apiVersion"].rpartition("/")[0]
    return group, manifest["kind"], metadata["namespace"], metadata["name"]


def selected(manifests: Sequence[Manifest], selector: Mapping[str, str]) -> list[str]:
    """The Deployments whose pods a selector matches."""
    return [
        name(each)
        for each in of_kind(manifests, "Deployment")
        if selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()
    ]


def selectors(manifest: Manifest) -> Iterator[Mapping[str, str]]:
    """The label selectors of an object that selects pods."""
    spec = manifest.get("spec", {})
    match manifest["kind"]:
        case "Service":
            yield spec["selector"]
        case "Deployment":
            yield spec["selector"]["matchLabels"]
            pod = spec["template"]["spec"]
            for constraint in pod.get("topologySpreadConstraints", []):
                yield constraint["labelSelector"]["matchLabels"]
        case "PodMonitor" | "PodDisruptionBudget":
            yield spec["selector"]["matchLabels"]
        case "NetworkPolicy":
            yield spec["podSelector"]["matchLabels"]


def pod_spec(deployment: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def violations_of_restricted(pod: Mapping[str, Any]) -> list[str]:
    """What the Pod Security Standard `restricted` would object to."""
    found = []
    for switch in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(switch):
            found.append(switch)
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    for volume in pod.get("volumes", []):
        found += [f"volume {kind}" for kind in volume.keys() - allowed - {"name"}]
    security = pod.get("securityContext", {})
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        found.append("may run as root")
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        found.append("no seccomp profile")
    for container in pod["containers"]:
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False:
            found.append("privilege escalation")
        if own.get("privileged"):
            found.append("privileged")
        if own.get("capabilities") != {"drop": ["ALL"]}:
            found.append("capabilities")
    return found

"""The scale subresource of a target: what it asks for, and asking for something else."""

from __future__ import annotations

from dataclasses import dataclass

from kubernetes import client

from growpage.fleet.kube.api import FIELD_MANAGER, MERGE_PATCH, Permission, explained
from growpage.fleet.targets import Kind, ScaleError, Target


@dataclass(frozen=True)
class Scale:
    """What the scale subresource said, at one version of the target."""

    replicas: int
    """``spec.replicas``."""
    selector: str
    """Label selector of the target's pods."""
    uid: str
    """Of the Deployment or StatefulSet itself."""
    resource_version: str


def permission(kind: Kind, verb: str) -> Permission:
    """What reading (``get``) and changing (``patch``) a scale takes."""
    return Permission("apps", f"{kind.lower()}s/scale", verb)


def read_scale(api: client.ApiClient, target: Target) -> Scale:
    """Read the target's scale.

    Raises:
        ScaleError: it cannot be read.
    """
    apps = client.AppsV1Api(api)
    read = (
        apps.read_namespaced_deployment_scale
        if target.kind == "Deployment"
        else apps.read_namespaced_stateful_set_scale
    )
    with explained(f"read the scale of {target}", permission(target.kind, "get"), target.namespace):
        scale = read(target.name, target.namespace)
    metadata, spec, status = scale.metadata, scale.spec, scale.status
    # An empty selector selects every pod of the namespace.
    if metadata is None or spec is None or status is None or not status.selector:
        raise ScaleError(f"cannot read the scale of {target}: it has no status with a selector")
    return Scale(
        replicas=spec.replicas or 0,  # the API leaves out a 0
        selector=status.selector,
        uid=metadata.uid or "",
        resource_version=metadata.resource_version or "",
    )


def patch_scale(api: client.ApiClient, target: Target, seen: Scale, replicas: int) -> None:
    """Ask for so many replicas, if the target is still as it was ``seen``.

    Raises:
        ScaleError: it was not done, or the answer did not arrive.
    """
    apps = client.AppsV1Api(api)
    patch = (
        apps.patch_namespaced_deployment_scale
        if target.kind == "Deployment"
        else apps.patch_namespaced_stateful_set_scale
    )
    # With a resourceVersion in it, the server refuses the patch when anything was changed since.
    body = {
        "metadata": {"resourceVersion": seen.resource_version},
        "spec": {"replicas": replicas},
    }
    with explained(
        f"scale {target} to {replicas}", permission(target.kind, "patch"), target.namespace
    ):
        patch(
            target.name,
            target.namespace,
            body,
            field_manager=FIELD_MANAGER,
            _content_type=MERGE_PATCH,
        )

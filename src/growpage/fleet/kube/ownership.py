"""Whether another controller sets a target's replicas: two of them would fight."""

from __future__ import annotations

from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from growpage.fleet.kube.api import Permission, explained
from growpage.fleet.targets import Target

LIST_HPAS = Permission("autoscaling", "horizontalpodautoscalers", "list")
LIST_SCALED_OBJECTS = Permission("keda.sh", "scaledobjects", "list")


def owner(api: client.ApiClient, target: Target) -> str | None:
    """What else scales the target, such as ``ScaledObject chat``; None if nothing does.

    Raises:
        ScaleError: it cannot be found out.
    """
    # First the ScaledObject, since KEDA makes an HPA for each.
    for item in _scaled_objects(api, target):
        ref = item.get("spec", {}).get("scaleTargetRef", {})
        # KEDA's defaults.
        kind, version = ref.get("kind") or "Deployment", ref.get("apiVersion") or "apps/v1"
        if (version.split("/")[0], kind, ref.get("name")) == ("apps", target.kind, target.name):
            return f"ScaledObject {item['metadata']['name']}"
    autoscaling = client.AutoscalingV2Api(api)
    with explained(f"see whether an HPA owns {target}", LIST_HPAS, target.namespace):
        hpas = autoscaling.list_namespaced_horizontal_pod_autoscaler(target.namespace).items
    for hpa in hpas:
        reference = hpa.spec.scale_target_ref if hpa.spec else None
        if reference and (reference.kind, reference.name) == (target.kind, target.name):
            return f"HorizontalPodAutoscaler {hpa.metadata.name if hpa.metadata else '?'}"
    return None


def _scaled_objects(api: client.ApiClient, target: Target) -> list[dict[str, Any]]:
    custom = client.CustomObjectsApi(api)
    doing = f"see whether a ScaledObject owns {target}"
    with explained(doing, LIST_SCALED_OBJECTS, target.namespace):
        try:
            found: Any = custom.list_namespaced_custom_object(
                "keda.sh", "v1alpha1", target.namespace, "scaledobjects"
            )
        except ApiException as error:
            if error.status == 404:  # KEDA is not installed
                return []
            raise
    return list(found["items"])

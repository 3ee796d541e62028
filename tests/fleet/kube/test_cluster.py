"""Reading and scaling, against a Kubernetes API."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kmock import Request
from kubernetes.client import ApiClient

from growpage.fleet.kube.api import connect
from growpage.fleet.kube.cluster import KubernetesCluster
from growpage.fleet.targets import Cluster, Replicas, ScaleError, Target
from tests.fleet.kube.apiserver import ApiServer, kubeconfig
from tests.fleet.kube.conftest import CHAT
from tests.fleet.kube.rbac import documented_rules

DEPLOYMENTS = "apps/v1/deployments"
SCALED_OBJECTS = "keda.sh/v1alpha1/scaledobjects"
HPAS = "autoscaling/v2/horizontalpodautoscalers"


@pytest.fixture
def cluster(api: ApiClient) -> KubernetesCluster:
    return KubernetesCluster(api)


def test_it_is_what_the_autoscaler_asks_for(cluster: KubernetesCluster) -> None:
    asked_for: Cluster = cluster
    assert asked_for is cluster


# -- reading -----------------------------------------------------------------------------------


def test_terminating_and_finished_pods_are_not_counted(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload(replicas=3)
    for number in range(2):
        server.pod(f"ready-{number}")
    server.pod("loading", ready_after=None)
    server.pod("leaving", deletionTimestamp="2026-01-01T00:10:00Z")
    server.pod("evicted")
    server.change("v1/pods", "evicted", {"status": {"phase": "Failed"}})
    server.pod("of-another-model", app="embed")
    assert cluster.replicas(CHAT) == Replicas(
        desired=3, ready=2, pending=1, pods=("loading", "ready-0", "ready-1")
    )
    # The server gives two pods a page.
    assert len(server.calls("GET", "/pods")) == 3


def test_the_pods_of_a_stateful_set_are_read_too(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload(kind="StatefulSet", replicas=1)
    server.pod("chat-0")
    target = Target("llm", "StatefulSet", "chat")
    assert cluster.replicas(target) == Replicas(1, 1, 0, ("chat-0",))


def test_a_scale_of_nothing_is_0(server: ApiServer, cluster: KubernetesCluster) -> None:
    server.workload(replicas=0)  # which the API leaves out
    assert cluster.replicas(CHAT).desired == 0


def test_without_a_selector_no_pod_is_taken_for_the_targets(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload()
    server.change(DEPLOYMENTS, "chat", {"spec": {"selector": {"matchLabels": {"app": None}}}})
    server.pod("of-another-model")
    with pytest.raises(ScaleError, match="it has no status with a selector"):
        cluster.replicas(CHAT)


def test_the_cold_start_is_the_90th_percentile_of_what_pods_took(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload()
    assert cluster.cold_start_seconds(CHAT) is None
    for number in range(1, 11):
        server.pod(f"chat-{number:02}", ready_after=100.0 * number)
    server.pod("loading", ready_after=None)
    server.pod("crashed-once", ready_after=9999.0)
    statuses = [{"name": "vllm", "image": "", "imageID": "", "ready": True, "restartCount": 1}]
    server.change("v1/pods", "crashed-once", {"status": {"containerStatuses": statuses}})
    cluster.replicas(CHAT)
    assert cluster.cold_start_seconds(CHAT) == 900.0

    # Failing its readiness probe later on does not make a start longer.
    server.pod(
        "chat-01", ready_after=5000.0, uid=server.stored("v1/pods", "chat-01")["metadata"]["uid"]
    )
    cluster.replicas(CHAT)
    assert cluster.cold_start_seconds(CHAT) == 900.0


# -- scaling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_scaling_patches_the_scale_that_was_read_and_nothing_else(
    server: ApiServer, cluster: KubernetesCluster, kind: str
) -> None:
    server.workload(kind=kind, replicas=3)
    resource = f"apps/v1/{kind.lower()}s"
    version = server.stored(resource, "chat")["metadata"]["resourceVersion"]
    cluster.scale(Target("llm", kind, "chat"), 5, expected=3)  # type: ignore[arg-type]
    (patch,) = server.calls("PATCH", "/")
    assert patch.url.path == f"/apis/apps/v1/namespaces/llm/{kind.lower()}s/chat/scale"
    assert patch.headers["Content-Type"] == "application/merge-patch+json"
    assert patch.data == {"metadata": {"resourceVersion": version}, "spec": {"replicas": 5}}
    assert server.replicas(resource=resource) == 5
    assert not server.calls("PUT", "/") and not server.calls("POST", "/")


def test_a_target_that_was_scaled_by_hand_meanwhile_is_left_alone(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload(replicas=4)
    with pytest.raises(ScaleError, match="asks for 4 replicas, not for 3 as when this was decided"):
        cluster.scale(CHAT, 5, expected=3)
    assert not server.calls("PATCH", "/")


def test_a_conflict_is_reported_and_not_tried_again(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload(replicas=3)

    def scale_by_hand(request: Request) -> None:
        if request.method.value == "PATCH":
            server.change(DEPLOYMENTS, "chat", {"spec": {"replicas": 7}})

    server.interfere = scale_by_hand
    with pytest.raises(
        ScaleError, match="cannot scale llm/Deployment/chat to 4: changed meanwhile"
    ):
        cluster.scale(CHAT, 4, expected=3)
    assert server.replicas() == 7
    assert len(server.calls("PATCH", "/")) == 1


def test_nothing_is_written_where_nothing_is_to_change(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload(replicas=3)
    cluster.scale(CHAT, 3, expected=3)
    assert not server.calls("PATCH", "/")


def test_less_than_nothing_is_refused(server: ApiServer, cluster: KubernetesCluster) -> None:
    server.workload(replicas=3)
    with pytest.raises(ScaleError, match="replicas are 0 or more"):
        cluster.scale(CHAT, -1, expected=3)
    assert not server.calls("GET", "/")


# -- failure 18: two controllers fight -----------------------------------------------------------


def reference(kind: str = "Deployment", name: str = "chat") -> dict[str, object]:
    ref = {"apiVersion": "apps/v1", "kind": kind, "name": name}
    return {"scaleTargetRef": ref, "maxReplicas": 5}


def test_failure_18_a_target_that_an_hpa_owns_is_refused(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload(replicas=3)
    server.add(HPAS, "chat-hpa", reference())
    with pytest.raises(ScaleError, match="HorizontalPodAutoscaler chat-hpa scales it already"):
        cluster.scale(CHAT, 4, expected=3)
    assert server.replicas() == 3
    assert not server.calls("PATCH", "/")


@pytest.mark.parametrize(
    "spec",
    [reference(), {"scaleTargetRef": {"name": "chat"}}],
    ids=["in full", "by KEDA's defaults"],
)
def test_failure_18_a_target_that_a_scaled_object_owns_is_refused(
    server: ApiServer, cluster: KubernetesCluster, spec: dict[str, object]
) -> None:
    server.workload(replicas=3)
    # The HPA that KEDA makes for it, which is not what to delete.
    server.add(HPAS, "keda-hpa-chat-scaler", reference())
    server.add(SCALED_OBJECTS, "chat-scaler", spec)
    with pytest.raises(ScaleError, match="ScaledObject chat-scaler scales it already"):
        cluster.scale(CHAT, 4, expected=3)
    assert server.replicas() == 3
    assert not server.calls("PATCH", "/")


def test_controllers_of_other_targets_are_not_in_the_way(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload(replicas=3)
    server.add(HPAS, "other", reference(name="embed"))
    server.add(HPAS, "other-kind", reference(kind="StatefulSet"))
    server.add(SCALED_OBJECTS, "other", reference(name="embed"))
    server.add(SCALED_OBJECTS, "other-kind", reference(kind="StatefulSet"))
    assert cluster.owner(CHAT) is None
    cluster.scale(CHAT, 4, expected=3)
    assert server.replicas() == 4


def test_without_keda_in_the_cluster_nothing_is_missing(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload(replicas=3)
    del server.resources[SCALED_OBJECTS]
    cluster.scale(CHAT, 4, expected=3)
    assert server.replicas() == 4


# -- what the API refuses, or does not answer ----------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "verb", "named"),
    [
        ("deployments/scale", "get", "get deployments/scale.apps"),
        ("deployments/scale", "patch", "patch deployments/scale.apps"),
        ("pods", "list", "list pods"),
        (
            "horizontalpodautoscalers",
            "list",
            "list horizontalpodautoscalers.autoscaling",
        ),
        ("scaledobjects", "list", "list scaledobjects.keda.sh"),
    ],
)
def test_a_missing_permission_is_named_and_nothing_is_scaled(
    server: ApiServer, api: ApiClient, resource: str, verb: str, named: str
) -> None:
    server.workload(replicas=2)
    server.pod("chat-a")
    server.pod("chat-b")
    server.rules = [
        rule
        for rule in documented_rules()
        if not (resource in rule["resources"] and verb in rule["verbs"])
    ]
    cluster = KubernetesCluster(api, running=lambda target: {"chat-a": 1.0, "chat-b": 2.0})
    with pytest.raises(ScaleError) as refused:
        cluster.scale(CHAT, 1, expected=2)
    assert f"the RBAC permission `{named}` in namespace llm is missing" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert server.replicas() == 2


def test_the_rules_for_watching_are_enough_to_watch(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload(replicas=1)
    server.pod("chat-a")
    server.rules = documented_rules("watch")
    assert cluster.replicas(CHAT).ready == 1
    assert cluster.cold_start_seconds(CHAT) == 60.0


def test_the_rules_for_acting_are_enough_to_scale_out_and_in(
    server: ApiServer, cluster: KubernetesCluster
) -> None:
    server.workload(replicas=2)
    server.pod("chat-a")
    server.pod("chat-b")
    server.rules = documented_rules("watch", "act")
    cluster.scale(CHAT, 3, expected=2)
    cluster.scale(CHAT, 1, expected=3)
    assert server.replicas() == 1


def test_a_target_that_does_not_exist_is_named(cluster: KubernetesCluster) -> None:
    with pytest.raises(ScaleError, match=r"read the scale of llm/Deployment/chat: not found"):
        cluster.replicas(CHAT)


def test_an_api_that_hangs_is_not_waited_for(server: ApiServer, tmp_path: Path) -> None:
    server.workload()
    server.slow = lambda request: 60.0
    cluster = KubernetesCluster(connect(kubeconfig(tmp_path, server.address), timeout_seconds=0.2))
    begin = time.monotonic()
    with pytest.raises(ScaleError, match=r"no answer from the Kubernetes API .*timed out"):
        cluster.replicas(CHAT)
    assert time.monotonic() - begin < 30
    assert len(server.calls("GET", "/")) <= 1  # and not asked again


def test_an_api_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    cluster = KubernetesCluster(connect(kubeconfig(tmp_path, "http://127.0.0.1:9")))
    with pytest.raises(ScaleError, match=r"no answer from the Kubernetes API .*refused"):
        cluster.replicas(CHAT)


def test_an_answer_of_something_else_is_said(server: ApiServer, cluster: KubernetesCluster) -> None:
    server.workload()
    server.answers["/scale"] = "<html>Sign in</html>"
    with pytest.raises(ScaleError, match="the answer is not one of the Kubernetes API"):
        cluster.replicas(CHAT)

"""Scaling in: who leaves, and whether they may finish."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kmock import Request
from kubernetes.client import ApiClient

from growpage.fleet.kube.cluster import Drain, KubernetesCluster
from growpage.fleet.kube.drain import (
    DELETION_COST,
    PREVIOUS_COST,
    cost_below,
    obstacles,
    pods_to_mark,
    shutdown_timeout,
)
from growpage.fleet.kube.pods import Container, Pod
from growpage.fleet.targets import ScaleError, Target
from tests.fleet.kube.apiserver import ApiServer
from tests.fleet.kube.conftest import CHAT
from tests.fleet.kube.rbac import documented_rules

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PODS = "v1/pods"


def pod(name: str, *, ready: bool = True, **fields: Any) -> Pod:
    return Pod(name, f"uid-{name}", NOW, ready_since=NOW if ready else None, **fields)


def vllm(*args: str, command: tuple[str, ...] = (), **fields: Any) -> Container:
    image = "vllm/vllm-openai:v0.32.0"
    return Container(image, (*command, *args), bool(command), **fields)


# -- which pods leave --------------------------------------------------------------------------


def names(pods: list[Pod]) -> set[str]:
    return {pod.name for pod in pods}


def test_the_pods_with_the_fewest_running_requests_leave() -> None:
    pods = [pod("a"), pod("b"), pod("c"), pod("d")]
    running = {"a": 5.0, "b": 0.0, "c": 7.0, "d": 2.0}
    assert names(pods_to_mark(pods, 1, running)) == {"b"}
    assert names(pods_to_mark(pods, 2, running)) == {"b", "d"}


def test_pods_that_are_not_ready_leave_first_by_themselves() -> None:
    pods = [pod("a"), pod("b"), pod("loading", ready=False)]
    assert pods_to_mark(pods, 1, {"a": 1.0, "b": 2.0}) == []
    assert names(pods_to_mark(pods, 2, {"a": 1.0, "b": 2.0})) == {"a"}


def test_a_pod_of_which_nothing_is_known_is_not_taken_for_idle() -> None:
    pods = [pod("silent"), pod("a"), pod("b")]
    assert names(pods_to_mark(pods, 1, {"a": 3.0, "b": 9.0})) == {"a"}
    assert pods_to_mark(pods, 1, {}) == []


def test_the_cost_is_below_every_other_also_those_that_users_set() -> None:
    users = pod("a", annotations={DELETION_COST: "-100"})
    assert cost_below([users, pod("b")]) == -101
    assert cost_below([pod("a", annotations={DELETION_COST: "7"})]) == -1
    assert cost_below([pod("a", annotations={DELETION_COST: str(-(2**31))})]) == -(2**31)


@settings(max_examples=60, deadline=None)
@given(
    running=st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=6),
    unready=st.integers(0, 2),
    leaving=st.integers(1, 8),
)
def test_whoever_is_marked_is_no_busier_than_whoever_stays(
    running: list[int | None], unready: int, leaving: int
) -> None:
    ready = [pod(f"ready-{number}") for number in range(len(running))]
    loading = [pod(f"loading-{number}", ready=False) for number in range(unready)]
    known = {
        f"ready-{number}": float(each) for number, each in enumerate(running) if each is not None
    }
    marked = names(pods_to_mark([*loading, *ready], leaving, known))
    assert len(marked) == min(len(known), max(0, leaving - unready))
    assert marked <= known.keys()
    stay = [known[name] for name in known.keys() - marked]
    assert all(known[name] <= other for name in marked for other in stay)


# -- failure 17: scale-down aborts requests ------------------------------------------------------


@pytest.mark.parametrize(
    ("container", "seconds"),
    [
        (vllm("--model", "m"), 0),
        (vllm("--shutdown-timeout", "60"), 60),
        (vllm("--shutdown-timeout=60"), 60),
        (vllm("--shutdown_timeout=60"), 60),
        (vllm("--shutdown-timeout", "5", "--shutdown-timeout", "60"), 60),
        (vllm("exec vllm serve m --shutdown-timeout 60", command=("sh", "-c")), 60),
        (vllm("--shutdown-timeout", "$(TIMEOUT)"), None),
        (vllm("--config", "/etc/vllm.yaml"), None),
        (vllm("--shutdown-timeout"), None),
    ],
)
def test_the_shutdown_timeout_is_read_from_the_arguments(
    container: Container, seconds: int | None
) -> None:
    assert shutdown_timeout(container) == seconds


def test_failure_17_a_pod_that_would_abort_is_found_with_the_figures() -> None:
    (reason,) = obstacles([pod("a", containers=(vllm("--model", "m"),), grace_seconds=45)])
    assert "--shutdown-timeout is 0, its default, which aborts running requests" in reason
    assert "terminationGracePeriodSeconds (now 45)" in reason


def test_failure_17_a_grace_period_too_short_is_found_with_the_figures() -> None:
    serve = vllm("--shutdown-timeout", "120", pre_stop_sleep=15)
    (reason,) = obstacles([pod("a", containers=(serve,), grace_seconds=144)])
    assert "terminationGracePeriodSeconds is 144, but must be at least 145: 15 of preStop" in reason
    assert obstacles([pod("a", containers=(serve,), grace_seconds=145)]) == []


@pytest.mark.parametrize(
    "container",
    [
        Container("istio/proxyv2", (), False),
        Container("registry/llm@sha256:vllm", ("--flag",), False),
        Container("vllm/vllm-openai", ("/start.sh",), True),
        Container(
            "envoy", ("envoy", "--logs", "/var/log/vllm", "--upstream", "vllm.llm.svc"), True
        ),
    ],
    ids=["another program", "an unknown image", "a script", "a proxy in front of it"],
)
def test_where_no_vllm_can_be_seen_nothing_is_claimed(container: Container) -> None:
    assert obstacles([pod("a", containers=(container,))]) == []


@pytest.mark.parametrize(
    "container",
    [
        Container("registry/llm", ("vllm", "serve", "m"), True),
        Container("registry/llm", ("growpage", "serve"), True),
        Container("registry/llm", ("/opt/venv/bin/vllm", "serve", "m"), True),
        Container("registry/llm", ("python", "-m", "vllm.entrypoints.openai.api_server"), True),
        Container("registry/growpage/server", (), False),
    ],
    ids=["vllm", "growpage", "path", "module", "image"],
)
def test_a_server_is_seen_however_it_is_started(container: Container) -> None:
    assert len(obstacles([pod("a", containers=(container,))])) == 1


def test_failure_17_a_scale_in_that_would_abort_is_refused(
    server: ApiServer, api: ApiClient
) -> None:
    server.workload(replicas=2)
    server.pod("chat-a", args=("--model", "m"))
    server.pod("chat-b", args=("--model", "m"))
    cluster = KubernetesCluster(api)
    with pytest.raises(ScaleError, match="cannot scale llm/Deployment/chat in: vLLM's --shutdown"):
        cluster.scale(CHAT, 1, expected=2)
    assert server.replicas() == 2
    assert len(cluster.obstacles_to_draining(CHAT)) == 1

    cluster.scale(CHAT, 3, expected=2)  # which aborts nothing
    assert server.replicas() == 3
    KubernetesCluster(api, drain=Drain.WARN).scale(CHAT, 1, expected=3)
    assert server.replicas() == 1


def test_failure_17_pods_that_are_leaving_already_are_not_looked_at(
    server: ApiServer, api: ApiClient
) -> None:
    server.workload(replicas=2)
    server.pod("chat-a")
    server.pod("chat-b")
    server.pod("of-the-last-revision", args=(), deletionTimestamp="2026-01-01T00:10:00Z")
    KubernetesCluster(api).scale(CHAT, 1, expected=2)
    assert server.replicas() == 1


# -- marking them --------------------------------------------------------------------------------


def annotations(server: ApiServer, name: str) -> Mapping[str, str]:
    found: Mapping[str, str] = server.stored(PODS, name)["metadata"].get("annotations", {})
    return found


def leaves(server: ApiServer) -> set[str]:
    return {
        each["metadata"]["name"]
        for each in server.all(PODS)
        if "deletionTimestamp" in each["metadata"]
    }


def three_pods(server: ApiServer) -> None:
    server.workload(replicas=3)
    server.pod("chat-a")
    server.pod("chat-b", annotations={DELETION_COST: "5"})
    server.pod("chat-c")


def test_the_least_busy_pod_is_marked_before_the_patch_and_is_the_one_that_leaves(
    server: ApiServer, api: ApiClient
) -> None:
    three_pods(server)
    running = {"chat-a": 4.0, "chat-b": 1.0, "chat-c": 2.0}
    KubernetesCluster(api, running=lambda target: running).scale(CHAT, 2, expected=3)
    mark, scale = server.calls("PATCH", "/")
    uid = server.stored(PODS, "chat-b")["metadata"]["uid"]
    assert mark.url.path == "/api/v1/namespaces/llm/pods/chat-b"
    assert mark.data == {
        "metadata": {"uid": uid, "annotations": {DELETION_COST: "-1", PREVIOUS_COST: "5"}}
    }
    assert scale.url.path.endswith("/deployments/chat/scale")
    assert leaves(server) == {"chat-b"}
    assert annotations(server, "chat-a") == annotations(server, "chat-c") == {}


def test_marks_are_taken_off_pods_that_were_not_deleted(server: ApiServer, api: ApiClient) -> None:
    three_pods(server)
    server.deletes_pods = False  # as in a rolling update, where others are deleted
    running = {"chat-a": 4.0, "chat-b": 1.0, "chat-c": 0.0}
    cluster = KubernetesCluster(api, running=lambda target: running, settle_seconds=0.2)
    cluster.scale(CHAT, 1, expected=3)
    assert server.replicas() == 1
    assert annotations(server, "chat-b") == {DELETION_COST: "5"}
    assert annotations(server, "chat-c") == {}
    marked = [call for call in server.calls("PATCH", "/pods/") if "-1" in call.text]
    assert len(marked) == 2


def test_marks_are_taken_off_when_the_scale_is_refused(server: ApiServer, api: ApiClient) -> None:
    three_pods(server)

    def refuse(request: Request) -> None:
        if request.subresource == "scale" and request.method.value == "PATCH":
            server.change("apps/v1/deployments", "chat", {"metadata": {"labels": {"new": "one"}}})

    server.interfere = refuse
    cluster = KubernetesCluster(api, running=lambda target: {"chat-b": 1.0})
    with pytest.raises(ScaleError, match="changed meanwhile"):
        cluster.scale(CHAT, 2, expected=3)
    assert server.calls("PATCH", "/pods/chat-b")
    assert annotations(server, "chat-b") == {DELETION_COST: "5"}
    assert server.replicas() == 3 and not leaves(server)


def test_marks_that_a_killed_autoscaler_left_are_taken_off(
    server: ApiServer, api: ApiClient
) -> None:
    three_pods(server)
    left = {DELETION_COST: "-1", PREVIOUS_COST: "8"}
    server.change(PODS, "chat-a", {"metadata": {"annotations": left}})
    server.change(PODS, "chat-c", {"metadata": {"annotations": left}})
    running = {"chat-a": 9.0, "chat-b": 9.0, "chat-c": 0.0}
    KubernetesCluster(api, running=lambda target: running).scale(CHAT, 2, expected=3)
    assert leaves(server) == {"chat-c"}
    assert annotations(server, "chat-a") == {DELETION_COST: "8"}
    assert annotations(server, "chat-c") == {DELETION_COST: "-2", PREVIOUS_COST: "8"}


def test_a_pod_that_was_replaced_by_its_namesake_is_not_marked(
    server: ApiServer, api: ApiClient
) -> None:
    three_pods(server)

    def replace(request: Request) -> None:
        if request.method.value == "PATCH" and request.name == "chat-b":
            server.change(PODS, "chat-b", {"metadata": {"uid": "of-another"}})

    server.interfere = replace
    cluster = KubernetesCluster(api, running=lambda target: {"chat-b": 1.0})
    with pytest.raises(ScaleError, match="cannot mark pod chat-b for deletion: changed meanwhile"):
        cluster.scale(CHAT, 2, expected=3)
    assert server.replicas() == 3


def test_without_the_permission_to_mark_pods_kubernetes_chooses(
    server: ApiServer, api: ApiClient, capsys: pytest.CaptureFixture[str]
) -> None:
    three_pods(server)
    server.rules = documented_rules("watch", "act")
    KubernetesCluster(api, running=lambda target: {"chat-b": 1.0}).scale(CHAT, 2, expected=3)
    assert server.replicas() == 2
    assert len(leaves(server)) == 1
    assert "the RBAC permission `patch pods` in namespace llm is missing" in capsys.readouterr().out


def test_without_the_running_requests_no_pod_is_written_to(
    server: ApiServer, api: ApiClient
) -> None:
    three_pods(server)
    KubernetesCluster(api).scale(CHAT, 2, expected=3)
    assert server.replicas() == 2
    assert not server.calls("PATCH", "/pods/")


def test_the_pods_of_a_stateful_set_leave_by_their_ordinals_whatever_is_marked(
    server: ApiServer, api: ApiClient
) -> None:
    server.workload(kind="StatefulSet", replicas=2)
    server.pod("chat-0")
    server.pod("chat-1")
    cluster = KubernetesCluster(api, running=lambda target: {"chat-0": 0.0, "chat-1": 9.0})
    cluster.scale(Target("llm", "StatefulSet", "chat"), 1, expected=2)
    assert server.replicas(resource="apps/v1/statefulsets") == 1
    assert not server.calls("PATCH", "/pods/")

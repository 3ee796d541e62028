"""Of several autoscalers one acts, also when it loses the Lease in the middle of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kmock import KubernetesError, Request
from kubernetes.client import ApiClient

from growpage.fleet.kube.api import connect
from growpage.fleet.kube.cluster import KubernetesCluster
from growpage.fleet.kube.leader import Leadership, LeadershipLostError
from growpage.fleet.targets import ScaleError
from tests.fleet.kube.apiserver import ApiServer, kubeconfig
from tests.fleet.kube.conftest import CHAT
from tests.fleet.kube.rbac import documented_rules

LEASES = "coordination.k8s.io/v1/leases"
LEASE = "growpage-autoscaler"


def candidate(api: ApiClient, identity: str) -> Leadership:
    """One that holds the Lease for long, as a slow machine may need."""
    return Leadership(
        api,
        namespace="llm",
        name=LEASE,
        identity=identity,
        lease_seconds=60,
        renew_deadline_seconds=50,
    )


def autoscaler(api: ApiClient, leadership: Leadership) -> KubernetesCluster:
    return KubernetesCluster(api, confirm_leader=leadership.confirm)


def holder(server: ApiServer) -> str:
    return str(server.stored(LEASES, LEASE)["spec"]["holderIdentity"])


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_the_first_takes_the_lease_and_the_second_waits(server: ApiServer, api: ApiClient) -> None:
    server.rules = documented_rules("lease")
    first, second = candidate(api, "a"), candidate(api, "b")
    assert first.attempt() and first.leads
    assert not second.attempt() and not second.leads
    first.confirm()
    with pytest.raises(LeadershipLostError, match=r"b_\w+ does not lead"):
        second.confirm()
    spec = server.stored(LEASES, LEASE)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == (first.identity, 60)


def test_two_of_one_name_are_two(server: ApiServer, api: ApiClient) -> None:
    first, second = candidate(api, "laptop"), candidate(api, "laptop")
    assert first.attempt()
    assert not second.attempt()


def test_a_lease_that_was_given_up_is_taken_at_once(server: ApiServer, api: ApiClient) -> None:
    first, second = candidate(api, "a"), candidate(api, "b")
    with first:
        first.confirm()  # without waiting for the thread
        assert not second.attempt()
    assert not first.leads
    assert holder(server) == ""
    assert second.attempt()


def test_giving_up_does_not_take_the_lease_from_another(server: ApiServer, api: ApiClient) -> None:
    first, second = candidate(api, "a"), candidate(api, "b")
    assert first.attempt()
    assert not second.attempt()
    second.release()
    assert holder(server) == first.identity
    first.confirm()


def test_of_two_that_race_for_the_lease_one_wins(server: ApiServer, api: ApiClient) -> None:
    first = candidate(api, "a")
    assert first.attempt()
    first.release()

    def be_quicker(request: Request) -> None:
        if request.method.value == "PUT":
            server.change(LEASES, LEASE, {"spec": {"holderIdentity": "b"}})

    server.interfere = be_quicker
    assert not first.attempt()
    assert holder(server) == "b"


@pytest.mark.parametrize("times", [(2, 2, 1), (15, 2, 2), (15, 10, 0)])
def test_times_that_do_not_fit_are_refused(api: ApiClient, times: tuple[int, int, int]) -> None:
    lease, deadline, retry = times
    with pytest.raises(ValueError, match=f"lease_seconds is {lease}, renew_deadline_seconds"):
        Leadership(
            api,
            namespace="llm",
            name=LEASE,
            identity="a",
            lease_seconds=lease,
            renew_deadline_seconds=deadline,
            retry_seconds=retry,
        )


# -- lost in the middle of an action -------------------------------------------------------------


def test_a_leader_that_loses_the_lease_before_its_patch_does_not_act(
    server: ApiServer, api: ApiClient
) -> None:
    server.workload(replicas=3)
    leadership = candidate(api, "a")
    assert leadership.attempt()

    def lose(request: Request) -> None:
        if request.subresource == "scale":
            server.change(LEASES, LEASE, {"spec": {"holderIdentity": "b"}})

    server.interfere = lose
    with pytest.raises(
        LeadershipLostError, match=rf"a_\w+ does not lead: Lease llm/{LEASE} is held by b"
    ):
        autoscaler(api, leadership).scale(CHAT, 4, expected=3)
    assert server.replicas() == 3
    assert not server.calls("PATCH", "/")
    assert not leadership.leads


def test_who_does_not_lead_marks_no_pods(server: ApiServer, api: ApiClient) -> None:
    server.workload(replicas=2)
    server.pod("chat-a")
    server.pod("chat-b")
    other, leadership = candidate(api, "b"), candidate(api, "a")
    assert other.attempt() and not leadership.attempt()
    cluster = KubernetesCluster(
        api, confirm_leader=leadership.confirm, running=lambda target: {"chat-a": 1.0}
    )
    with pytest.raises(LeadershipLostError):
        cluster.scale(CHAT, 1, expected=2)
    assert not server.calls("PATCH", "/")


def test_a_leader_that_loses_the_lease_while_it_marks_pods_takes_the_marks_off(
    server: ApiServer, api: ApiClient
) -> None:
    server.workload(replicas=2)
    server.pod("chat-a")
    server.pod("chat-b")
    leadership = candidate(api, "a")
    assert leadership.attempt()

    def lose(request: Request) -> None:
        if request.name == "chat-a":
            server.change(LEASES, LEASE, {"spec": {"holderIdentity": "b"}})

    server.interfere = lose
    cluster = KubernetesCluster(
        api, confirm_leader=leadership.confirm, running=lambda target: {"chat-a": 1.0}
    )
    with pytest.raises(LeadershipLostError):
        cluster.scale(CHAT, 1, expected=2)
    assert server.replicas() == 2
    assert server.calls("PATCH", "/pods/chat-a")
    assert server.stored("v1/pods", "chat-a")["metadata"]["annotations"] == {}


def test_a_leader_that_loses_the_lease_to_one_that_acts_is_stopped_by_the_server(
    server: ApiServer, api: ApiClient
) -> None:
    server.workload(replicas=3)
    leadership = candidate(api, "a")
    assert leadership.attempt()

    def act_in_its_place(request: Request) -> None:
        if request.method.value == "PATCH":
            server.change(LEASES, LEASE, {"spec": {"holderIdentity": "b"}})
            server.change("apps/v1/deployments", "chat", {"spec": {"replicas": 6}})

    server.interfere = act_in_its_place
    with pytest.raises(ScaleError, match="changed meanwhile"):
        autoscaler(api, leadership).scale(CHAT, 4, expected=3)
    assert server.replicas() == 6


def test_a_leader_that_cannot_ask_does_not_act(server: ApiServer, tmp_path: Path) -> None:
    api = connect(kubeconfig(tmp_path, server.address), timeout_seconds=2)
    server.workload(replicas=3)
    leadership = candidate(api, "a")
    assert leadership.attempt()
    asked: list[float] = []

    def hang(request: Request) -> float:
        if "/leases/" not in request.url.path:
            return 0.0
        asked.append(time.monotonic())
        return 60.0

    server.slow = hang
    with pytest.raises(ScaleError, match=f"cannot read Lease llm/{LEASE}: no answer from"):
        autoscaler(api, leadership).scale(CHAT, 4, expected=3)
    assert asked and server.replicas() == 3


# -- two autoscalers -----------------------------------------------------------------------------


class Autoscaler:
    """Adds a replica whenever it may, until told to stop."""

    def __init__(self, address: str, folder: Path, identity: str) -> None:
        self.identity = identity
        api = connect(kubeconfig(folder, address))
        api.user_agent = identity
        self.leadership = Leadership(
            api,
            namespace="llm",
            name=LEASE,
            identity=identity,
            lease_seconds=6,
            renew_deadline_seconds=4,
            retry_seconds=1,
        )
        self.acted = 0
        self.refused: set[str] = set()
        self._cluster = autoscaler(api, self.leadership)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Autoscaler:
        self.leadership.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(10)
        self.leadership.__exit__(None, None, None)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            try:
                now = self._cluster.replicas(CHAT).desired
                self._cluster.scale(CHAT, now + 1, expected=now)
                self.acted += 1
            except ScaleError as error:
                self.refused.add(type(error).__name__)


def test_of_two_autoscalers_one_acts_and_the_other_takes_over(
    server: ApiServer, tmp_path: Path
) -> None:
    server.workload(replicas=1)
    first = Autoscaler(server.address, tmp_path, "a")
    second = Autoscaler(server.address, tmp_path, "b")
    with first:
        assert eventually(lambda: first.acted > 0)
        with second:
            assert eventually(lambda: "LeadershipLostError" in second.refused)
            before = first.acted
            assert eventually(lambda: first.acted > before + 3)
            assert second.acted == 0

            # The first is cut off from the API: it stops by itself, and the second follows.
            def cut_off(request: Request) -> None:
                if request.headers["User-Agent"] == "a":
                    raise KubernetesError(status=503, message="cut off")

            server.interfere = cut_off
            assert eventually(lambda: not first.leadership.leads)
            assert eventually(lambda: second.acted > 3)
            assert holder(server) == second.leadership.identity

            # Back again, it finds another at work.
            server.interfere = lambda request: None
            acted, first.refused = first.acted, set()
            assert eventually(lambda: "LeadershipLostError" in first.refused)
            assert first.acted == acted
    changes = [call.headers["User-Agent"] for call in server.calls("PATCH", "/scale")]
    assert server.replicas() == 1 + first.acted + second.acted
    assert "".join(dict.fromkeys(changes)) == "ab"
    assert changes == sorted(changes)

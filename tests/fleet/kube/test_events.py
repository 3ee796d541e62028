"""Events on the targets."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from growpage.fleet.decision import Action, DataState, Decision
from growpage.fleet.kube.api import connect
from growpage.fleet.kube.events import BURST, REFILL_SECONDS, REPEAT_SECONDS, EventRecorder
from growpage.fleet.targets import ScaleError
from tests.fleet.kube.apiserver import ApiServer, kubeconfig
from tests.fleet.kube.conftest import CHAT
from tests.fleet.kube.rbac import documented_rules

EVENTS = "events.k8s.io/v1/events"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(server: ApiServer, api: ApiClient, clock: Clock) -> EventRecorder:
    server.workload(replicas=3)
    return EventRecorder(api, instance="autoscaler-0", clock=clock)


def decision(action: Action, desired: int = 3, state: DataState = DataState.FRESH) -> Decision:
    return Decision("qwen", CHAT, action, 3, desired, "KV usage is 0.91", state)


HOLD = decision(Action.NO_ACTION, state=DataState.STALE)


def test_what_was_done_is_an_event_on_the_target(
    server: ApiServer, recorder: EventRecorder
) -> None:
    server.rules = documented_rules("watch", "events")
    assert recorder.record(decision(Action.SCALE_OUT, 5))
    (event,) = server.all(EVENTS)
    assert event["regarding"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "namespace": "llm",
        "name": "chat",
        "uid": "uid-of-chat",
    }
    assert event["metadata"]["name"].startswith("chat.")
    expected = {
        "type": "Normal",
        "reason": "ScaledOut",
        "action": "SCALE_OUT",
        "note": "qwen: KV usage is 0.91",
        "reportingController": "growpage-autoscaler",
        "reportingInstance": "autoscaler-0",
    }
    assert event.items() >= expected.items()
    assert datetime.fromisoformat(event["eventTime"]).microsecond > 0


def test_what_was_refused_is_a_warning_with_both_reasons(
    server: ApiServer, recorder: EventRecorder
) -> None:
    assert recorder.record(decision(Action.SCALE_IN, 2), refused=ScaleError("an HPA owns it"))
    (event,) = server.all(EVENTS)
    assert (event["type"], event["reason"]) == ("Warning", "ScaleInRefused")
    assert event["note"] == "qwen: an HPA owns it (decided: KV usage is 0.91)"


@pytest.mark.parametrize("state", [each for each in DataState if each is not DataState.FRESH])
def test_a_hold_for_want_of_data_is_a_warning(
    server: ApiServer, recorder: EventRecorder, state: DataState
) -> None:
    assert recorder.record(decision(Action.NO_ACTION, state=state))
    (event,) = server.all(EVENTS)
    assert (event["type"], event["reason"]) == ("Warning", f"HeldOn{state.title()}Data")


def test_nothing_to_do_is_no_event(server: ApiServer, recorder: EventRecorder) -> None:
    assert not recorder.record(decision(Action.NO_ACTION))
    assert server.all(EVENTS) == []


def test_a_hold_that_goes_on_is_said_again_only_after_ten_minutes(
    server: ApiServer, recorder: EventRecorder, clock: Clock
) -> None:
    assert recorder.record(HOLD)
    clock.now += REPEAT_SECONDS - 1
    assert not recorder.record(HOLD)
    assert recorder.record(decision(Action.NO_ACTION, state=DataState.ABSENT))  # this is new
    clock.now += REPEAT_SECONDS
    assert recorder.record(decision(Action.NO_ACTION, state=DataState.ABSENT))
    assert len(server.all(EVENTS)) == 3


def test_a_refusal_that_goes_on_is_said_again_only_after_ten_minutes(
    recorder: EventRecorder, clock: Clock
) -> None:
    out = decision(Action.SCALE_OUT, 5)
    assert recorder.record(out, refused=ScaleError("no"))
    assert not recorder.record(out, refused=ScaleError("no"))
    assert recorder.record(decision(Action.SCALE_OUT, 6), refused=ScaleError("no"))


def test_a_target_that_flaps_does_not_flood_the_cluster(
    server: ApiServer, recorder: EventRecorder, clock: Clock
) -> None:
    for _ in range(BURST):
        clock.now += 0.1
        assert recorder.record(decision(Action.SCALE_OUT, 4))
    assert not recorder.record(decision(Action.SCALE_IN, 2))
    clock.now += REFILL_SECONDS
    assert recorder.record(decision(Action.SCALE_IN, 2))
    assert len(server.all(EVENTS)) == BURST + 1


def test_a_long_reason_is_cut_to_what_the_api_takes(
    server: ApiServer, recorder: EventRecorder
) -> None:
    reason = "é" * 1000
    assert recorder.record(Decision("qwen", CHAT, Action.SCALE_OUT, 3, 4, reason, DataState.FRESH))
    (event,) = server.all(EVENTS)
    assert 1020 <= len(event["note"].encode()) <= 1024
    assert event["note"].endswith("é...")


def test_an_autoscaler_that_stands_by_says_nothing(server: ApiServer, api: ApiClient) -> None:
    server.workload()
    recorder = EventRecorder(api, instance="autoscaler-1", speaks=lambda: False)
    assert not recorder.record(decision(Action.SCALE_OUT, 4), refused=ScaleError("does not lead"))
    assert server.all(EVENTS) == []


def test_an_event_that_cannot_be_written_holds_nothing_up(
    server: ApiServer, recorder: EventRecorder, tmp_path: Path
) -> None:
    server.rules = documented_rules("watch")
    assert not recorder.record(decision(Action.SCALE_OUT, 4))
    server.rules = []
    assert not recorder.record(decision(Action.SCALE_OUT, 4))
    nowhere = connect(kubeconfig(tmp_path, "http://127.0.0.1:9"))
    assert not EventRecorder(nowhere, instance="a").record(decision(Action.SCALE_OUT, 4))

"""Rounds in a cluster: what is read, what is done, and what is told of it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from growpage.fleet.audit import AuditLog, as_text
from growpage.fleet.config import AutoscalerSettings
from growpage.fleet.controller import Acted, Controller, Record, Round
from growpage.fleet.decision import Action, DataState, Decision
from growpage.fleet.latest import LatestDecisions
from growpage.fleet.prometheus import PrometheusClient
from growpage.fleet.targets import Replicas, ScaleError, Target
from growpage.fleet.telemetry import FleetMetrics, Health
from tests.fleet.conftest import ScrapedFleet
from tests.fleet.test_with_prometheus import QUICK

TARGET = Target("llm", "Deployment", "chat")


@dataclass
class ClusterInMemory:
    """A cluster of one target, whose pods have names."""

    pods: tuple[str, ...]
    failure: Exception | None = None
    asked: list[tuple[Target, int, int]] = field(default_factory=list)

    def replicas(self, target: Target) -> Replicas:
        if self.failure is not None:
            raise self.failure
        return Replicas(len(self.pods), len(self.pods), 0, self.pods)

    def cold_start_seconds(self, target: Target) -> float | None:
        return 120.0

    def scale(self, target: Target, replicas: int, *, expected: int) -> None:
        self.asked.append((target, replicas, expected))
        if replicas > 3:
            raise ScaleError(f"cannot scale {target}: forbidden")


def settings(url: str, **policy: Any) -> AutoscalerSettings:
    return AutoscalerSettings.of(
        {
            "prometheus": {"url": url, "retries": 0},
            "interval_seconds": 0.5,
            "models": [{"model": "smol", "target": "llm/chat", "policy": {**QUICK, **policy}}],
        }
    )


def only(controller: Controller) -> Record:
    (record,) = controller.run_once().records
    return record


def gauge_of(metrics: FleetMetrics, name: str) -> float | None:
    labels = {"namespace": "llm", "model_name": "smol", "target": "chat"}
    return metrics.registry.get_sample_value(name, labels)


def test_a_round_in_a_cluster(scraped_fleet: ScrapedFleet, tmp_path: Path) -> None:
    scraped_fleet.set(usage=0.5, running=4, deferred=50)
    url = scraped_fleet.prometheus.url
    configured = settings(url)
    cluster = ClusterInMemory(("chat-a", "chat-b"))
    metrics, latest = FleetMetrics(), LatestDecisions(max_age=60)
    audit = AuditLog(tmp_path / "audit.jsonl", configured.digest())
    sinks = [metrics.record, latest, audit]
    with PrometheusClient(configured.prometheus) as client:
        controller = Controller(configured, client, cluster, act=True, sinks=sinks)
        rest = _until(controller, DataState.FRESH, Action.NO_ACTION)
        assert rest.acted is Acted.NOTHING_TO_DO, rest
        assert controller.running(TARGET) == {"chat-a": 4.0, "chat-b": 4.0}
        assert gauge_of(metrics, "growpage_desired_replicas") == 2

        cluster.asked.clear()  # of what the fleet was under before
        scraped_fleet.set(usage=0.95, running=9, waiting=1)
        scaled = _until(controller, action=Action.SCALE_OUT)
        assert scaled.acted is Acted.SCALED
        assert cluster.asked == [(TARGET, 3, 2)]
        assert gauge_of(metrics, "growpage_desired_replicas") == 3
        assert latest.get("llm", "chat") == scaled.decision

        cluster.failure = RuntimeError("the API is gone")
        blind = only(controller)
        assert blind.decision.current is None
        assert "the API is gone" in blind.decision.reason
        assert gauge_of(metrics, "growpage_desired_replicas") is None

        cluster.failure = None
        refused = only(Controller(settings(url, min_replicas=4), client, cluster, act=True))
        assert refused.acted is Acted.FAILED
        assert refused.error == "cannot scale llm/Deployment/chat: forbidden"
        assert "[failed: cannot scale" in as_text(refused)

        nameless = only(Controller(configured, client, ClusterInMemory(("x", "y"))))
        assert nameless.decision.state is DataState.ABSENT
        assert "names a live pod of llm/Deployment/chat" in nameless.decision.reason
    audit.close()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [each["acted"] for each in lines[-2:]] == ["scaled", "nothing to do"]
    assert lines[-2]["config"] == configured.digest()
    inputs = {each["name"]: each for each in lines[-2]["inputs"]}
    assert inputs["replicas_desired"]["query"] == "Kubernetes"
    assert inputs["cold_start_seconds"]["value"] == 120.0
    assert 'namespace="llm"' in inputs["running"]["query"]
    assert inputs["running"]["value"] == 18


def test_every_model_that_prometheus_knows_is_found(scraped_fleet: ScrapedFleet) -> None:
    found = AutoscalerSettings.of(
        {
            "prometheus": {"url": scraped_fleet.prometheus.url},
            "interval_seconds": 0.5,
            "policy": QUICK,
        }
    )
    with PrometheusClient(found.prometheus) as client:
        decision = _until(Controller(found, client), DataState.FRESH).decision
    assert decision.model == "smol"
    assert decision.target == Target("llm", "Deployment", "vllm")  # as the job is called
    # Without Kubernetes what is scraped is taken for a replica.
    assert decision.current == 3


def _until(
    controller: Controller, state: DataState | None = None, action: Action | None = None
) -> Record:
    deadline = time.monotonic() + 40
    while True:
        record = only(controller)
        decision = record.decision
        if decision.state is (state or decision.state) and decision.action is (
            action or decision.action
        ):
            return record
        assert time.monotonic() < deadline, record
        time.sleep(0.2)


def record(state: DataState, desired: int | None, action: Action = Action.NO_ACTION) -> Record:
    decision = Decision("smol", TARGET, action, desired, desired, "-", state)
    return Record(None, decision, Acted.NOTHING_TO_DO)


@pytest.mark.parametrize("state", [DataState.STALE, DataState.ABSENT, DataState.INVALID])
def test_the_gauge_is_absent_while_nothing_is_known(state: DataState) -> None:
    """Neither the last value nor the current one: an HPA would follow either."""
    metrics = FleetMetrics()
    metrics.record(record(DataState.FRESH, 5))
    assert gauge_of(metrics, "growpage_desired_replicas") == 5
    metrics.record(record(state, 4))
    assert gauge_of(metrics, "growpage_desired_replicas") is None
    assert gauge_of(metrics, "growpage_autoscaler_current_replicas") == 4
    exposed = generate_latest(metrics.registry).decode()
    assert f'state="{state}",target="chat"}} 1.0' in exposed
    assert 'state="FRESH",target="chat"} 0.0' in exposed
    metrics.record(record(state, 2, Action.SCALE_OUT))  # below the minimum
    assert gauge_of(metrics, "growpage_desired_replicas") == 2


def test_what_is_said_of_a_model_is_withdrawn_when_it_is_gone_and_after_a_failed_round() -> None:
    metrics = FleetMetrics()
    good = record(DataState.FRESH, 5)
    for end in (lambda: metrics.record_round(Round(()), 0.1), metrics.record_failure):
        metrics.record(good)
        metrics.record_round(Round((good,)), 0.1)
        assert gauge_of(metrics, "growpage_desired_replicas") == 5
        end()
        assert gauge_of(metrics, "growpage_desired_replicas") is None
        # Nor does its state stay, or an alert on it would never end.
        assert "growpage_autoscaler_data_state{" not in generate_latest(metrics.registry).decode()


def test_a_disk_that_is_full_does_not_stop_the_scaling() -> None:
    AuditLog(Path("/dev/full"), "-")(record(DataState.FRESH, 5))


def test_a_loop_that_hangs_is_not_alive() -> None:
    now = [0.0]
    health = Health(patience=60, clock=lambda: now[0])
    assert (health.alive, health.ready) == (True, False)
    health.beat()
    assert health.ready
    now[0] = 61.0
    assert (health.alive, health.ready) == (False, False)


def test_a_decision_is_forgotten_when_it_is_old() -> None:
    now = [0.0]
    latest = LatestDecisions(max_age=45, clock=lambda: now[0])
    latest(record(DataState.FRESH, 3))
    assert latest.get("llm", "chat") is not None
    assert latest.get("llm", "other") is None
    now[0] = 46.0
    assert latest.get("llm", "chat") is None

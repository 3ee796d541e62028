"""The whole way into a cluster: Prometheus, the decision, the Lease, the scale and the Events."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml

from growpage.fleet.config import AutoscalerSettings
from growpage.fleet.controller import Acted, Record
from growpage.fleet.wiring import autoscaler
from tests.fleet.conftest import ScrapedFleet
from tests.fleet.kube.apiserver import ApiServer, kubeconfig, served
from tests.fleet.test_with_prometheus import QUICK, autoscale


def test_it_scales_a_deployment_and_refuses_one_that_an_hpa_owns(
    scraped_fleet: ScrapedFleet, tmp_path: Path
) -> None:
    scraped_fleet.set(usage=0.95, running=9)
    with served(ApiServer()) as server:
        server.workload(replicas=2)
        for name in ("chat-a", "chat-b"):
            server.pod(name)
        settings: dict[str, Any] = {
            "prometheus": {"url": scraped_fleet.prometheus.url, "retries": 0},
            "interval_seconds": 0.5,
            "models": [{"model": "smol", "target": "llm/chat", "policy": QUICK}],
            "kubernetes": {
                "kubeconfig": str(kubeconfig(tmp_path, server.address)),
                "lease_namespace": "llm",
            },
        }
        watched = _until_decided(settings)
        assert watched.acted is Acted.DRY_RUN
        assert server.replicas() == 2
        inputs = {each.name: each.value for each in watched.decision.inputs}
        assert inputs["cold_start_seconds"] == 60.0

        settings["kubernetes"]["act"] = True
        file = tmp_path / "autoscaler.yaml"
        file.write_text(yaml.safe_dump(settings))
        status, decision, _ = autoscale(file)
        assert (status, decision["acted"]) == (0, "scaled")
        assert server.replicas() == decision["desired"] == 3
        (event,) = server.all("events.k8s.io/v1/events")
        assert event["reason"] == "ScaledOut"
        assert decision["reason"] in event["note"]

        server.change("apps/v1/deployments", "chat", {"spec": {"replicas": 2}})
        owned = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
        server.add(
            "autoscaling/v2/horizontalpodautoscalers",
            "chat-hpa",
            {"maxReplicas": 5, "scaleTargetRef": owned},
        )
        status, decision, _ = autoscale(file)
        assert (status, decision["acted"]) == (5, "failed")
        assert "HorizontalPodAutoscaler chat-hpa scales it already" in decision["error"]
        assert server.replicas() == 2


def _until_decided(settings: dict[str, Any]) -> Record:
    deadline = time.monotonic() + 40
    with autoscaler(AutoscalerSettings.of(settings)) as controller:
        while True:
            (record,) = controller.run_once().records
            if record.acted is not Acted.NOTHING_TO_DO:
                return record
            assert time.monotonic() < deadline, record
            time.sleep(0.2)


def test_only_the_leader_acts(tmp_path: Path) -> None:
    """Two autoscalers below the minimum, which needs no metrics: one lifts, one stands by."""
    with served(ApiServer()) as server:
        server.workload(replicas=1)
        server.pod("chat-a")
        settings = AutoscalerSettings.of(
            {
                "prometheus": {"url": "http://127.0.0.1:9", "retries": 0},
                "models": [{"model": "m", "target": "llm/chat", "policy": {"min_replicas": 2}}],
                "kubernetes": {
                    "act": True,
                    "kubeconfig": str(kubeconfig(tmp_path, server.address)),
                    "lease_namespace": "llm",
                },
            }
        )
        with autoscaler(settings) as first, autoscaler(settings) as second:
            (standing_by,) = second.run_once().records
            assert (standing_by.acted, server.replicas()) == (Acted.STANDING_BY, 1)
            (acting,) = first.run_once().records
            assert (acting.acted, server.replicas()) == (Acted.SCALED, 2)

"""Every alert goes from a metric through Prometheus and Alertmanager to a webhook, and ends.

The rules run in fast motion (see ``stack.py``). Each alert has a model of its own on one exporter,
which first is as the alert describes and then is mended; one more model is always healthy. The
autoscaler's metrics are its own, which it serves.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from growpage.fleet.controller import Round
from growpage.fleet.decision import DataState
from growpage.fleet.telemetry import FleetMetrics, Health, TelemetryServer
from tests.monitoring.autoscaler import record
from tests.monitoring.exporter import Exporter
from tests.monitoring.queries import ROOT, load_rules
from tests.monitoring.stack import (
    PROGRAMS,
    RULES,
    fast_rules,
    faster,
    running,
    wait_until,
)
from tests.prometheus_server import free_port

HEALTHY = "healthy"

Behaviour = Callable[[Exporter, str, bool], None]
"""What a model's engine does in a tenth of a second: ill or not."""


def loss(server: Exporter, model: str, ill: bool) -> None:
    server.observe(model, "growpage_predicted_loss", 0.4 if ill else 0.02, 10, mode="enforce")


def utilization(server: Exporter, model: str, ill: bool) -> None:
    server.gauge(model, "growpage_kv_page_utilization", 0.4 if ill else 0.95)
    server.gauge(model, "growpage_kv_kept_tokens", 500)


def compress_ratio(server: Exporter, model: str, ill: bool) -> None:
    server.gauge(model, "growpage_intra_page_compress_ratio", 1 if ill else 2)
    mode(server, model, cache="fp8")


def allocation(server: Exporter, model: str, ill: bool) -> None:
    seconds = 0.2 if ill else 0.001
    server.observe(model, "growpage_page_allocation_latency_seconds", seconds, 25)


def growth(server: Exporter, model: str, ill: bool) -> None:
    server.count(model, "growpage_growths", 10, reason="signal", mode="enforce")
    refused = 10 if ill else 0
    server.count(model, "growpage_growth_refused", refused, reason="pool", mode="enforce")


def preemptions(server: Exporter, model: str, ill: bool) -> None:
    server.count(model, "vllm:num_preemptions", ill)
    mode(server, model)


def fragmentation(server: Exporter, model: str, ill: bool) -> None:
    server.gauge(model, "growpage_page_table_fragmentation", 0.9)
    server.gauge(model, "vllm:kv_cache_usage_perc", 0.5)
    server.gauge(model, "vllm:num_requests_waiting_by_reason", 4 * ill, reason="capacity")
    server.gauge(model, "vllm:num_requests_running", 3)
    server.gauge(model, "growpage_max_num_seqs", 8)


def orphans(server: Exporter, model: str, ill: bool) -> None:
    server.gauge(model, "growpage_orphaned_pages", 2 * ill)


def inactive(server: Exporter, model: str, ill: bool) -> None:
    server.count(model, "growpage_compressions", 5, reason="boundary", mode="enforce")
    server.count(model, "growpage_compactions_confirmed", 0 if ill else 5)


def not_loaded(server: Exporter, model: str, ill: bool) -> None:
    server.gauge(model, "vllm:kv_cache_usage_perc", 0.99)
    server.count(model, "vllm:num_preemptions", 1)
    if not ill:
        mode(server, model, policy="full")


def mode(server: Exporter, model: str, *, policy: str = "elastic", cache: str = "bfloat16") -> None:
    labels = {"score": "window", "mode": "enforce", "version": "0"}
    server.gauge(model, "growpage_mode_info", 1, policy=policy, cache=cache, **labels)


BEHAVIOURS: dict[str, Behaviour] = {
    "GrowPagePredictedLossBurn": loss,
    "GrowPageUtilizationLow": utilization,
    "GrowPageCompressRatioLow": compress_ratio,
    "GrowPageAllocationSlow": allocation,
    "GrowPageGrowthRefused": growth,
    "GrowPagePreemptions": preemptions,
    "GrowPageFragmentation": fragmentation,
    "GrowPageOrphanedPages": orphans,
    "GrowPageInactive": inactive,
    "GrowPageNotLoaded": not_loaded,
}
DOWN = "GrowPageTargetDown"

HOLDS = "GrowPageAutoscalerHolds"
CANNOT_SCALE = "GrowPageAutoscalerCannotScale"
SILENT = "GrowPageAutoscalerSilent"


def autoscaler(metrics: FleetMetrics, ill: bool) -> None:
    """A round of an autoscaler; an ill one does not come to its end."""
    records = (
        record(HOLDS, DataState.STALE if ill else DataState.FRESH),
        record(CANNOT_SCALE, DataState.FRESH, error="forbidden" if ill else ""),
        record(HEALTHY, DataState.FRESH),
    )
    for each in records:
        metrics.record(each)
    if not ill:
        metrics.record_round(Round(records), seconds=0.01)


ALERTS = {*BEHAVIOURS, DOWN, HOLDS, CANNOT_SCALE, SILENT}


def receiver_of(alert: str) -> str:
    """Which people are told, by the example configuration."""
    severities = {rule["labels"]["severity"] for rule in load_rules() if rule.get("alert") == alert}
    return "pager" if "critical" in severities else "tickets"


def test_every_alert_fires_and_ends_at_the_webhook(tmp_path: Path) -> None:
    server, other = Exporter(), Exporter()
    fleet = FleetMetrics()
    telemetry = TelemetryServer("127.0.0.1", 0, fleet, Health(patience=120))
    targets = [server.address, other.address, f"127.0.0.1:{telemetry.port}"]
    expected = {(receiver_of(alert), alert) for alert in ALERTS}
    routes = tmp_path / "routes.json"
    with (
        routed(tmp_path, routes) as router,
        running(tmp_path, targets, {"router": router}) as stack,
    ):

        def act(ill: bool) -> None:
            for alert, behave in BEHAVIOURS.items():
                behave(server, alert, ill)
                if behave is not not_loaded:  # a healthy server with preemptions compresses nothing
                    behave(server, HEALTHY, False)
            autoscaler(fleet, ill)

        def all_fire() -> bool:
            act(ill=True)
            return stack.notices.fired() >= expected and to_smaller(routes) == 50

        def all_end() -> bool:
            act(ill=False)
            return not stack.notices.firing() and to_smaller(routes) == 0

        assert to_smaller(routes) == 0
        other.stop()
        wait_until(all_fire, lambda: f"missing: {expected - stack.notices.fired()}", 60)
        other.start()
        wait_until(all_end, lambda: f"left: {stack.notices.firing()}", 60)
        assert [rule for rule in stack.rules() if rule["health"] != "ok"] == []
    told = {alert["labels"].get("model_name") for _, alert in stack.notices.received}
    # Alerts on whole servers name no model; the healthy one has no alert.
    assert told == {*BEHAVIOURS, HOLDS, CANNOT_SCALE, None}
    for _, alert in stack.notices.received:
        assert "{{" not in json.dumps(alert["annotations"])
    server.stop()
    other.stop()
    telemetry.close()


# ---- the example of a router -----------------------------------------------------------------


@contextmanager
def routed(folder: Path, routes: Path) -> Iterator[str]:
    """The documentation's receiver, run as it says; yields its address."""
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    program = folder / "route_on_burn.py"
    program.write_text(code, encoding="utf-8")
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, program, routes, str(port)], stderr=(folder / "router.log").open("wb")
    )
    try:
        wait_until(routes.exists, (folder / "router.log").read_text)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(10)


def to_smaller(routes: Path) -> int:
    """Per cent of the traffic that goes to the smaller model."""
    (resource,) = json.loads(routes.read_text(encoding="utf-8"))["resources"]
    clusters = resource["virtual_hosts"][0]["routes"][0]["route"]["weighted_clusters"]["clusters"]
    weights = {cluster["name"]: cluster["weight"] for cluster in clusters}
    assert sum(weights.values()) == 100
    return int(weights["small-model"])


# ---- the rules themselves --------------------------------------------------------------------


def run(program: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [PROGRAMS / program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_pass_their_unit_tests() -> None:
    run("promtool", "test", "rules", RULES.with_name("rules_test.yaml"))


def test_the_examples_are_valid() -> None:
    run("promtool", "check", "config", RULES.with_name("prometheus.yaml"))
    run("amtool", "check-config", RULES.with_name("alertmanager.yaml"))


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (["severity=critical", "action=route-to-smaller-model"], "router,pager"),
        (["severity=warning", "action=route-to-smaller-model"], "router,tickets"),
        (["severity=critical"], "pager"),
        (["severity=info"], "tickets"),
    ],
)
def test_the_example_tells_a_router_and_always_somebody(labels: list[str], receivers: str) -> None:
    config = f"--config.file={RULES.with_name('alertmanager.yaml')}"
    assert run("amtool", "config", "routes", "test", config, *labels).strip() == receivers


def test_an_autoscaler_that_is_gone_is_missed_for_a_day(tmp_path: Path) -> None:
    """At two moments: every minute of a day, as in the file, would take promtool seconds."""
    (expr,) = (rule["expr"] for rule in load_rules() if rule.get("alert") == SILENT)
    rounds = 'growpage_autoscaler_round_duration_seconds_count{job="autoscaler"}'
    missed = {"labels": '{job="autoscaler"}', "value": 0}
    case = {
        "interval": "1m",
        "input_series": [{"series": rounds, "values": "7x10 stale"}],
        "promql_expr_test": [
            {"expr": expr, "eval_time": "23h", "exp_samples": [missed]},
            {"expr": expr, "eval_time": "25h", "exp_samples": []},
        ],
    }
    file = tmp_path / "gone.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}), encoding="utf-8")
    run("promtool", "test", "rules", file)


def test_every_alert_has_a_unit_test_that_fires_and_one_that_does_not() -> None:
    alerts = {rule["alert"] for rule in load_rules() if "alert" in rule}
    tests = yaml.safe_load(RULES.with_name("rules_test.yaml").read_text("utf-8"))["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts
    assert alerts == ALERTS


def test_every_alert_says_what_whom_and_how_much() -> None:
    for rule in load_rules():
        if "alert" in rule:
            assert set(rule["labels"]) <= {"severity", "window", "action"}
            assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
            assert "{{ $labels." in rule["annotations"]["summary"]
            numbers = re.search(r"\$value|\d", rule["annotations"]["description"])
            assert numbers, rule["alert"]


def test_fast_motion_changes_durations_and_nothing_else() -> None:
    original = load_rules()
    fast = [rule for group in fast_rules()["groups"] for rule in group["rules"]]
    assert len(fast) == len(original)
    durations = re.compile(r"\[[^]]*\]")
    for slow, quick in zip(original, fast, strict=True):
        assert durations.sub("[]", slow["expr"]) == durations.sub("[]", quick["expr"])
        assert {key: quick[key] for key in quick.keys() - {"expr", "for"}} == {
            key: slow[key] for key in slow.keys() - {"expr", "for"}
        }
    assert faster("30m") == "9000ms"
    with pytest.raises(ValueError, match="1h30m"):
        faster("1h30m")

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from growpage.telemetry.catalogue import BY_NAME, METRICS, Kind, exposed_names
from growpage.telemetry.exporter import Exporter, OwnMetrics
from growpage.telemetry.report import Report

INFO = "growpage_mode_info"
OBSERVE = ("elastic", "window", "observe", "bfloat16", "0")
ENFORCE = ("elastic", "window", "enforce", "bfloat16", "0")


def report(**parts: list[tuple[str, tuple[str, ...], object]]) -> Report:
    return Report(**{"counters": [], "gauges": [], "values": [], **parts})  # type: ignore[typeddict-item]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def exporter(registry: CollectorRegistry) -> Exporter:
    return Exporter("chat", [0, 1], registry)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {"model_name": "chat", "engine": "0", **labels})


def test_every_metric_of_the_catalogue_is_registered_under_its_names(
    registry: CollectorRegistry, exporter: Exporter
) -> None:
    for metric in METRICS:
        labels = ("x",) * len(metric.labels)
        match metric.kind:
            case Kind.COUNTER:
                exporter.record(0, report(counters=[(metric.name, labels, 1)]))
            case Kind.GAUGE:
                exporter.record(0, report(gauges=[(metric.name, labels, 1)]))
            case Kind.HISTOGRAM:
                exporter.record(0, report(values=[(metric.name, labels, [1])]))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = {s.name for family in families for s in family.samples}
    assert exposed_names() <= samples
    assert {name for name in samples if not name.endswith("_created")} == exposed_names()


def test_counters_add_up_and_gauges_do_not(registry: CollectorRegistry, exporter: Exporter) -> None:
    for _ in range(2):
        exporter.record(
            0,
            report(
                counters=[("growpage_compressions", ("pool", "enforce"), 2)],
                gauges=[("growpage_kv_kept_tokens", (), 7)],
                values=[("growpage_predicted_loss", ("enforce",), [0.01, 0.2])],
            ),
        )
    assert value(registry, "growpage_compressions_total", reason="pool", mode="enforce") == 4
    assert value(registry, "growpage_kv_kept_tokens") == 7
    assert value(registry, "growpage_predicted_loss_count", mode="enforce") == 4
    assert value(registry, "growpage_predicted_loss_sum", mode="enforce") == pytest.approx(0.42)


def test_an_engine_is_in_one_mode(registry: CollectorRegistry, exporter: Exporter) -> None:
    names = BY_NAME[INFO].labels
    for labels in (OBSERVE, ENFORCE):
        exporter.record(0, report(gauges=[(INFO, labels, 1)]))
    exporter.record(1, report(gauges=[(INFO, OBSERVE, 1)]))
    assert value(registry, INFO, **dict(zip(names, OBSERVE, strict=True))) == 0
    assert value(registry, INFO, **dict(zip(names, ENFORCE, strict=True))) == 1
    assert value(registry, INFO, engine="1", **dict(zip(names, OBSERVE, strict=True))) == 1


def test_what_has_no_labels_of_its_own_is_there_from_the_start(
    registry: CollectorRegistry, exporter: Exporter
) -> None:
    assert value(registry, "growpage_kv_page_allocations_total", engine="1") == 0
    assert value(registry, "growpage_kv_demand_tokens_count") == 0
    assert value(registry, "growpage_evicted_tokens_total", mode="observe") == 0
    assert value(registry, "growpage_kv_kept_tokens") is None, "nothing was measured yet"


def test_only_our_own_are_shown_alone(registry: CollectorRegistry, exporter: Exporter) -> None:
    Counter("vllm_something", "Not ours.", registry=registry)
    own = generate_latest(OwnMetrics(registry)).decode()  # type: ignore[arg-type]
    assert "growpage_kv_page_allocations_total" in own
    assert "vllm_something" not in own
    assert "vllm_something" in generate_latest(registry).decode()

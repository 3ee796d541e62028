"""Which samples count, and for which pod."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from growpage.fleet.decision import DataState
from growpage.fleet.metric_names import LABELS, METRICS, Signal
from growpage.fleet.prometheus import Answer, PrometheusClient, Series
from growpage.fleet.signals import CAPACITY, by_pod
from growpage.fleet.sources import Gathered, Source, gather, replicas_by_scrape
from growpage.telemetry import catalogue
from tests.fleet.fleets import NOW, POLICY, TARGET, decided, healthy, observed, scraped, series


@pytest.mark.parametrize("order", [1, -1])
def test_two_prometheus_servers_see_one_pod_once(order: int) -> None:
    """One of them was down for a while: the other has no gap, and it counts."""
    table = {}
    for signal, (whole,) in healthy("a", usage=0.5, running=6, waiting=2).items():
        with_gap = [sample for sample in whole.samples if not 60 < NOW - sample[0] < 200]
        other = Series({**whole.labels, "prometheus_replica": "two"}, tuple(with_gap))
        table[signal] = [whole, other][::order]
    history = observed(table, "a")
    assert (history[-1].pods[0].running, history[-1].pods[0].waiting) == (6, 2)
    assert {each.state for each in history} == {DataState.FRESH}


def test_of_a_pod_that_came_again_the_new_series_counts() -> None:
    """A StatefulSet's pod keeps its name and gets another address."""
    table = healthy("a")
    table[Signal.RUNNING] = [
        series(scraped(lambda _: 9.0, end=60), instance="10.0.0.1:8000"),
        series(scraped(lambda _: 1.0, begin=45), instance="10.0.0.2:8000"),
    ]
    assert observed(table, "a")[-1].pods[0].running == 1


def test_two_scrape_jobs_do_not_double_a_pod() -> None:
    table = healthy("a", running=5)
    table[Signal.RUNNING] = [*table[Signal.RUNNING], series(5, job="pod-monitor")]
    assert observed(table, "a")[-1].pods[0].running == 5


def test_the_older_name_serves_the_pods_that_have_no_other() -> None:
    answers = {
        Signal.KV_USAGE: [
            Answer("vllm:kv_cache_usage_perc", (series(0.4, pod="new"),)),
            Answer("vllm:gpu_cache_usage_perc", (series(0.9, pod="new"), series(0.6, pod="old"))),
        ]
    }
    pods = by_pod(answers, pod_label="pod", live=["new", "old"])
    values = {
        name: {samples[-1][1] for samples in found.of[Signal.KV_USAGE].values()}
        for name, found in pods.items()
    }
    assert values == {"new": {0.4}, "old": {0.6}}


def test_after_an_update_the_name_that_is_still_written_counts() -> None:
    """A StatefulSet's pod was updated to a vLLM that calls its usage by another name."""
    before = series(scraped(lambda _: 0.9, end=120), engine=None)
    after = series(scraped(lambda _: 0.2, begin=90))
    for first, second in ((before, after), (after, before)):
        answers = {Signal.KV_USAGE: [Answer("", (first,)), Answer("", (second,))]}
        (found,) = by_pod(answers, pod_label="pod", live="a")["a"].of[Signal.KV_USAGE].values()
        assert found[-1][1] == 0.2


@pytest.mark.parametrize(
    ("usage", "running"),
    [
        ("vllm:kv_cache_usage_perc", ["vllm:num_requests_running"]),
        ("vllm_kv_cache_usage_perc", ["vllm_num_requests_running"]),
        ("team:kv_usage", ["vllm:num_requests_running", "vllm_num_requests_running"]),
    ],
)
def test_names_are_asked_for_as_they_are_spelled_here(usage: str, running: list[str]) -> None:
    asked: list[str] = []

    class OnlyUsage:
        def samples(
            self, name: str, labels: dict[str, str], *, end: float, seconds: float
        ) -> Answer:
            asked.append(name)
            return Answer(f"{name}{{}}", (series(0.5),) if name == usage else ())

    metrics = {Signal.KV_USAGE: usage} if usage.startswith("team:") else {}
    source = Source("smol", TARGET, {}, POLICY, metrics)
    gather(cast(PrometheusClient, OnlyUsage()), source, end=NOW, seconds=600)
    assert [name for name in asked if name.endswith("num_requests_running")] == running
    assert "up" in asked


def test_usage_is_the_maximum_of_the_last_minute() -> None:
    table = healthy("a")
    table[Signal.KV_USAGE] = [series(scraped(lambda age: 0.8 if age == 45 else 0.3))]
    usages = [each.pods[0].kv_usage for each in observed(table, "a")]
    assert usages[-1] == 0.8
    assert usages[-5:].count(0.8) == 4
    assert usages[-8] == 0.3


def test_a_warning_makes_good_data_partial() -> None:
    history = observed(healthy("a"), "a", warnings=["store-2 did not answer"])
    assert history[-1].state is DataState.PARTIAL
    assert "Prometheus warns: store-2 did not answer" in decided(history).reason


def test_a_pod_that_never_reported_makes_data_partial_unless_it_starts() -> None:
    table = healthy("a")
    assert observed(table, ["a", "b"])[-1].state is DataState.PARTIAL
    assert observed(table, ["a", "b"], starting=1)[-1].state is DataState.FRESH


def test_a_pod_without_up_is_not_confirmed() -> None:
    table = {**healthy("a"), Signal.UP: []}
    last = observed(table, "a")[-1]
    assert last.state is DataState.PARTIAL
    assert "no `up`" in last.describe_problems()


@pytest.mark.parametrize("value", [-0.1, 1.5, 85.0, float("inf")])
def test_a_usage_that_is_no_share_is_invalid(value: float) -> None:
    table = {**healthy("a"), Signal.KV_USAGE: [series(value)]}
    assert observed(table, "a")[-1].state is DataState.INVALID


def test_growpage_metrics_are_read_as_the_plugin_exports_them() -> None:
    """Names and labels against the plugin's own catalogue."""
    exported = {metric.name: metric for metric in catalogue.METRICS}
    for signal, names in METRICS.items():
        (name, *_) = names
        if name.startswith("growpage_"):
            plain = name
            for suffix in ("_total", "_sum", "_count"):
                plain = plain.removesuffix(suffix)
            assert plain in exported, name
            assert set(LABELS.get(signal, {})) == set(exported[plain].labels), name


def test_vllm_metrics_are_read_as_vllm_exports_them() -> None:
    exposition = (Path(__file__).parents[1] / "data/vllm-0.32-exposition.txt").read_text()
    exported = {family.name: family for family in text_string_to_metric_families(exposition)}
    for signal in (Signal.KV_USAGE, Signal.RUNNING, Signal.WAITING_BY_REASON):
        labels = exported[METRICS[signal][0]].samples[0].labels
        assert {"model_name", "engine"} <= set(labels)
    reasons = exported[METRICS[Signal.WAITING_BY_REASON][0]].samples
    assert CAPACITY in {sample.labels["reason"] for sample in reasons}
    counter = exported[METRICS[Signal.PREEMPTIONS][0].removesuffix("_total")]
    assert {sample.name for sample in counter.samples} >= {METRICS[Signal.PREEMPTIONS][0]}


def scrapes(*found: Series) -> Gathered:
    usage = (Answer("", tuple(series(0.5, pod=each.labels["pod"]) for each in found)),)
    return Gathered({Signal.KV_USAGE: usage, Signal.UP: (Answer("", found),)})


def test_replicas_are_what_is_scraped_in_the_jobs_of_the_model() -> None:
    gathered = scrapes(series(1, pod="a"), series(0, pod="b"))
    others = (Answer("", (*gathered.answers[Signal.UP][0].series, series(1, pod="c", job="x"))),)
    found = replicas_by_scrape(
        Gathered({**gathered.answers, Signal.UP: others}), now=NOW, max_age=60, pod_label="pod"
    )
    assert found is not None
    assert (found.desired, found.ready, found.pods) == (2, 1, ("a", "b"))


def test_replicas_are_not_counted_while_prometheus_goes_round_for_the_first_time() -> None:
    """It was away, has come back 30 s ago, and has not been to the second pod yet."""
    back = scraped(lambda _: 1.0, begin=30)
    gathered = scrapes(series([*scraped(lambda _: 1.0, end=300), *back], pod="a"))
    assert replicas_by_scrape(gathered, now=NOW, max_age=60, pod_label="pod") is None
    later = replicas_by_scrape(gathered, now=NOW + 30, max_age=60, pod_label="pod")
    assert later is not None

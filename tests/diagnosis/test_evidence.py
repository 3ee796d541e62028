"""The arithmetic that every check relies on."""

from __future__ import annotations

import math

import pytest

from growpage.diagnosis.evidence import EngineBuilder, Histogram, MissingMetricError, Series
from tests.diagnosis.exporter import two_samples


def series(*values: float) -> Series:
    return Series({}, {float(time): value for time, value in enumerate(values)})


@pytest.mark.parametrize(
    ("values", "increase", "resets"),
    [((5.0,), 0, 0), ((5.0, 9.0), 4, 0), ((5.0, 9.0, 2.0, 3.0), 7, 1), ((5.0, 0.0), 0, 1)],
)
def test_what_a_counter_lost_to_a_restart_is_counted(
    values: tuple[float, ...], increase: float, resets: int
) -> None:
    assert series(*values).increase == increase
    assert series(*values).resets == resets


def test_a_label_value_that_comes_up_within_the_span_has_counted_from_zero() -> None:
    name = 'growpage_growth_refused{reason="pool",mode="enforce"}'
    (engine,) = two_samples(between={name: 4})
    assert engine.increase("growpage_growth_refused_total") == 4
    assert engine.increase_by("growpage_growth_refused_total", "reason") == {"pool": 4}


def test_a_labelled_counter_that_is_described_has_counted_nothing_yet() -> None:
    (engine,) = two_samples()
    assert engine.increase("growpage_compressions_total") == 0
    with pytest.raises(MissingMetricError, match="growpage_compressions_sum"):
        engine.increase("growpage_compressions_sum")


def test_a_counter_that_a_plain_vllm_does_not_export_is_missing() -> None:
    (engine,) = two_samples(growpage=False)
    with pytest.raises(MissingMetricError, match="growpage_compressions_total is not exported"):
        engine.increase("growpage_compressions_total")


def test_a_label_that_an_info_metric_lacks_is_missing() -> None:
    (engine,) = two_samples(cache={"block_size": "32"})
    with pytest.raises(MissingMetricError, match=r"vllm:cache_config_info\{num_gpu_blocks\}"):
        engine.label("vllm:cache_config_info", "num_gpu_blocks")


def test_nan_says_nothing() -> None:
    builder = EngineBuilder("engine 0")
    builder.add("g", {}, 0.0, math.nan)
    builder.add("g", {}, 10.0, 0.5)
    builder.add("h", {}, 0.0, math.nan)
    engine = builder.build(frozenset())
    assert engine.mean("g") == 0.5
    with pytest.raises(MissingMetricError):
        engine.find("h")


def test_quantiles_are_those_of_prometheus() -> None:
    histogram = Histogram(((0.1, 10.0), (0.2, 30.0), (math.inf, 40.0)), total=8.0)
    assert histogram.quantile(0.5) == pytest.approx(0.15)
    assert histogram.quantile(0.25) == pytest.approx(0.1)
    assert histogram.quantile(0.99) == 0.2  # all that is known: more than the last bound
    assert histogram.mean == 0.2
    assert math.isnan(Histogram((), 0.0).quantile(0.5))


def test_observations_since_the_start_stand_in_for_those_of_the_span() -> None:
    name = "growpage_page_allocation_latency_seconds"
    (engine,) = two_samples({name: (0.002, 5)}, {name: (0.04, 3)})
    assert engine.histogram(name).count == 3
    assert not engine.histogram(name).since_start
    (engine,) = two_samples({name: (0.002, 5)}, {name: (0.0, 0)})
    assert engine.histogram(name).count == 5
    assert engine.histogram(name).since_start

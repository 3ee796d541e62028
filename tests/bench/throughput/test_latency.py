"""Latencies of made-up streams, by hand."""

from __future__ import annotations

import pytest

from growpage.bench.throughput.latency import Distribution, latencies
from tests.bench.throughput.made_up import trace


def test_one_stream_by_hand() -> None:
    one = trace([(1.5, 1), (1.7, 1), (2.5, 2)], sent=1.0)
    assert one.tokens == 4
    assert one.ttft == pytest.approx(0.5)
    assert one.e2el == pytest.approx(1.5)
    assert one.tpot == pytest.approx(1.0 / 3)  # 1 s for the 3 tokens after the first
    assert one.gaps == pytest.approx([0.2, 0.8])
    assert one.failure is None


def test_a_single_token_has_no_time_per_output_token() -> None:
    one = trace([(2.0, 1)], sent=1.0)
    assert one.tpot is None
    assert one.gaps == []
    assert one.ttft == one.e2el == 1.0


def test_percentiles_are_interpolated() -> None:
    found = Distribution.of([float(value) for value in range(101)])
    assert found is not None
    assert found.mean == 50
    assert found.percentiles == {50: 50, 90: 90, 99: 99}
    between = Distribution.of([0.0, 1.0])
    assert between is not None
    assert between.percentiles == pytest.approx({50: 0.5, 90: 0.9, 99: 0.99})
    assert between.milliseconds() == {"mean": 500, "p50": 500, "p90": 900, "p99": 990}
    assert Distribution.of([]) is None


def test_gaps_of_all_streams_count_together_and_tpot_once_each() -> None:
    slow = trace([(1.0, 1), (2.0, 1)])
    fast = trace([(0.1, 1), (0.2, 1), (0.3, 1), (0.4, 1)])
    found = latencies([slow, fast])
    assert found["itl"].mean == pytest.approx((1.0 + 3 * 0.1) / 4)
    assert found["tpot"].mean == pytest.approx((1.0 + 0.1) / 2)
    assert found["ttft"].mean == pytest.approx(0.55)
    assert found["e2el"].mean == pytest.approx(1.2)


def test_failed_requests_do_not_count() -> None:
    good = trace([(1.0, 1), (2.0, 1)])
    short = trace([(0.1, 1)], wanted=5)
    broken = trace([], wanted=5, error="HTTP 500: no")
    assert short.failure == "1 of 5 tokens"
    assert broken.failure == "HTTP 500: no"
    assert latencies([good, short, broken]) == latencies([good])
    assert latencies([broken]) == {}

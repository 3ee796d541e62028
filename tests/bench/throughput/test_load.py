"""Lengths, arrivals and the pace of a load."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from growpage.bench.throughput.load import (
    ClosedLoop,
    Lengths,
    LoadRequest,
    OpenLoop,
    Pace,
    make_loads,
    pages_needed,
)
from growpage.budget.errors import ConfigError


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in zip([0.0, *times], times, strict=False)]


def request_of(tokens: int) -> LoadRequest:
    return LoadRequest(id=str(tokens), prompt="", prompt_token_ids=[1] * 10, output_tokens=tokens)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_burstiness_that_were_asked_for(burstiness: float) -> None:
    times = OpenLoop(rate=5, burstiness=burstiness, seed=3).arrivals(20_000)
    found = gaps(times)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(20_000 / 5)
    assert statistics.fmean(found) == pytest.approx(1 / 5)
    # A gamma distribution of that shape: its squared coefficient of variation is 1 / shape.
    variation = statistics.pvariance(found) / statistics.fmean(found) ** 2
    assert variation == pytest.approx(1 / burstiness, rel=0.1)


def test_poisson_gaps_are_exponential() -> None:
    found = np.array(gaps(OpenLoop(rate=2, seed=1).arrivals(20_000)))
    for quantile in (0.1, 0.5, 0.9, 0.99):
        expected = -math.log(1 - quantile) / 2
        assert np.quantile(found, quantile) == pytest.approx(expected, rel=0.08)


def test_arrivals_are_those_of_their_seed() -> None:
    load = OpenLoop(rate=3, burstiness=0.5, seed=7)
    assert load.arrivals(50) == load.arrivals(50)
    assert load.arrivals(50) != load.model_copy(update={"seed": 8}).arrivals(50)
    assert load.arrivals(0) == []


def test_a_closed_loop_sends_when_a_client_is_free() -> None:
    pace = Pace(ClosedLoop(clients=2), count=5)
    assert pace.send_at(0, active=0, now=0.0) == 0.0
    assert pace.send_at(1, active=1, now=0.5) == 0.5
    assert pace.send_at(2, active=2, now=1.0) == math.inf


def test_an_open_loop_sends_when_it_is_time_however_many_wait() -> None:
    load = OpenLoop(rate=1, seed=0)
    pace = Pace(load, count=3)
    arrivals = load.arrivals(3)
    assert [pace.send_at(index, active=99, now=0.0) for index in range(3)] == arrivals


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("128", Lengths(128, 128)),
        ("64-512", Lengths(64, 512)),
        (" 64-512:log ", Lengths(64, 512, log=True)),
    ],
)
def test_lengths_are_read_as_they_are_shown(text: str, expected: Lengths) -> None:
    assert Lengths.of(text) == expected
    assert str(expected) == text.strip()


@pytest.mark.parametrize("text", ["", "0", "512-64", "64-", "-5", "64-512:lin", "1.5"])
def test_wrong_lengths_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"{text!r} says no lengths; write 128"):
        Lengths.of(text)


def test_lengths_are_between_their_bounds_and_spread_as_asked_for() -> None:
    uniform = Lengths(10, 1000).draw(5000, np.random.default_rng(0))
    log = Lengths(10, 1000, log=True).draw(5000, np.random.default_rng(0))
    for drawn in (uniform, log):
        assert min(drawn) >= 10
        assert max(drawn) <= 1000
    assert statistics.median(uniform) == pytest.approx(505, rel=0.05)
    assert statistics.median(log) == pytest.approx(100, rel=0.08)  # the geometric mean
    assert Lengths(7, 7).draw(3, np.random.default_rng(0)) == [7, 7, 7]


def test_a_load_needs_the_pages_of_its_largest_requests() -> None:
    requests = [request_of(tokens) for tokens in (22, 23, 86, 54)]  # 1, 2, 3 and 2 pages of 32
    assert [each.pages(32) for each in requests] == [1, 2, 3, 2]
    assert pages_needed(requests, 2, 32) == 5
    assert pages_needed(requests, 10, 32) == 8


def test_loads_of_a_command_line() -> None:
    assert make_loads(None, ()) == [ClosedLoop(clients=32)]
    assert make_loads(4, ()) == [ClosedLoop(clients=4)]
    assert make_loads(None, (1, 2.5), 0.5, 9) == [
        OpenLoop(rate=1, burstiness=0.5, seed=9),
        OpenLoop(rate=2.5, burstiness=0.5, seed=9),
    ]


@pytest.mark.parametrize(
    ("clients", "rates", "burstiness", "message"),
    [
        (4, (1.0,), 1.0, "--clients is a closed loop and --request-rate an open one: give either"),
        (None, (0.0,), 1.0, "--request-rate is 0, but must be a finite number, more than 0"),
        (None, (math.inf,), 1.0, "--request-rate is inf, but must be"),
        (None, (1.0,), -1.0, "--burstiness is -1, but must be"),
        (None, (1.0,), math.nan, "--burstiness is nan, but must be"),
    ],
)
def test_wrong_loads_are_refused(
    clients: int | None, rates: tuple[float, ...], burstiness: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_loads(clients, rates, burstiness)

"""Signals that tell the change to come, that do not, and that only seem to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from growpage.bench.analyses.correlation import show
from growpage.bench.analyses.observe import Course
from growpage.bench.analyses.signal import figure, summarise, table
from growpage.bench.look import to_png
from growpage.budget.errors import ConfigError
from tests.bench.analyses.made_up import course, observed

REQUESTS, BOUNDARIES = 24, 8


def rho(report: dict[str, Any], signal: str, span: str) -> dict[str, Any]:
    found: dict[str, Any] = report["signals"][signal][span]["rho"]
    return found


def telling(chance: np.random.Generator) -> Course:
    """Delta is the change until the next boundary, give or take."""
    steps = chance.normal(size=BOUNDARIES)
    shorts = 50 + np.cumsum(steps)
    return course(shorts.tolist(), (np.append(steps[1:], 0) * 3).tolist())


def silent(chance: np.random.Generator) -> Course:
    """A level that does not change, measured with noise, of which delta is made."""
    noise = chance.normal(size=BOUNDARIES)
    return course((50 + noise).tolist(), noise.tolist())


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    chance = np.random.default_rng(0)
    return summarise(observed({f"r{at}": telling(chance) for at in range(REQUESTS)}))


def test_a_signal_that_tells_the_next_change_is_found(found: dict[str, Any]) -> None:
    assert rho(found, "delta", "0 to 1")["low"] > 0.8
    assert rho(found, "delta", "0 to 2")["resolved"]
    assert not rho(found, "delta", "1 to 2")["resolved"], "nor does it say more than that"
    assert found["signals"]["delta"]["0 to 4"]["pairs"] == REQUESTS * (BOUNDARIES - 4)


def test_shared_noise_pulls_below_zero_and_the_later_span_shows_that_it_is_noise() -> None:
    chance = np.random.default_rng(1)
    report = summarise(observed({f"r{at}": silent(chance) for at in range(REQUESTS)}))
    assert rho(report, "delta", "0 to 1")["high"] < -0.3
    assert not rho(report, "delta", "1 to 2")["resolved"]
    assert not report["autocorrelation"]["delta"]["rho"]["resolved"]
    assert not report["positive_deltas"]["resolved_from_half"]


def test_the_table_says_what_is_not_resolved(found: dict[str, Any]) -> None:
    rows = table(found)
    assert "not resolved" in show(rho(found, "delta", "1 to 2"))
    assert "not resolved" not in show(rho(found, "delta", "0 to 1"))
    assert rows.row_count == len(found["signals"])
    assert "delta is positive at" in str(rows.caption)


def test_it_is_drawn(found: dict[str, Any]) -> None:
    drawn = figure(found)
    assert "not resolved" in drawn.axes[2].get_title(loc="left")
    assert to_png(drawn).startswith(b"\x89PNG")


def test_requests_too_short_for_a_change_are_refused() -> None:
    with pytest.raises(ConfigError, match="--new-tokens"):
        summarise(observed({"r": course([50.0], [1.0])}))
    with pytest.raises(ConfigError, match="--new-tokens"):
        summarise(observed({"r": course([], [])}))


def test_a_request_that_is_never_measured_is_left_out() -> None:
    chance = np.random.default_rng(2)
    courses = {f"r{at}": silent(chance) for at in range(4)} | {"short": course([], [])}
    assert summarise(observed(courses))["boundaries"] == 4 * BOUNDARIES

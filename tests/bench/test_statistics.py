"""Intervals that hold the truth as often as they say, and pairs that cancel what is common."""

from __future__ import annotations

import numpy as np
import pytest

from growpage.bench.statistics import difference, loss_ratio, mean, ratio


def figures(values: np.ndarray) -> dict[str, float]:
    return {str(index): float(value) for index, value in enumerate(values)}


def test_the_interval_of_a_mean_covers_the_truth_in_19_of_20_samples() -> None:
    chance = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        estimate = mean(figures(chance.normal(3.0, 1.0, size=60)))
        covered += estimate.low <= 3.0 <= estimate.high
    assert 180 <= covered <= 198


def test_what_is_common_to_both_cancels() -> None:
    chance = np.random.default_rng(1)
    hardness = chance.normal(0, 50, size=100)
    ours, theirs = figures(hardness + 1), figures(hardness)
    estimate = difference(ours, theirs)
    assert estimate.value == pytest.approx(1)
    assert estimate.high - estimate.low < 1e-9
    assert estimate.resolves(0)


def test_two_samples_of_the_same_are_not_resolved() -> None:
    chance = np.random.default_rng(2)
    base = chance.lognormal(size=80)
    noise = ratio(figures(base * chance.lognormal(0, 0.1, 80)), figures(base))
    assert not noise.resolves(1)


def test_half_the_loss_is_a_half() -> None:
    full = {str(i): 1.0 for i in range(100)}
    fixed = {str(i): float(i >= 40) for i in range(100)}
    ours = {str(i): float(i >= 20) for i in range(100)}
    estimate = loss_ratio(ours, fixed, full)
    assert estimate.value == pytest.approx(0.5)
    assert estimate.resolves(1) and not estimate.resolves(0.5)


def test_equal_figures_have_the_ratio_one_even_if_they_are_zero() -> None:
    zero = {"a": 0.0, "b": 0.0}
    assert ratio(zero, zero).value == 1
    assert loss_ratio(zero, zero, zero).value == 1
    assert ratio({"a": 1.0, "b": 1.0}, zero).value == float("inf")


def test_other_requests_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="same requests"):
        difference({"a": 1.0}, {"b": 1.0})

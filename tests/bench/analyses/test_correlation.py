"""Correlations that are planted are found, and those that are not there are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growpage.bench.analyses.correlation import partial_spearman, share, spearman


def names(count: int, each: int = 1) -> list[str]:
    return [f"request-{index}" for index in range(count) for _ in range(each)]


def by_hand(ours: list[float], theirs: list[float]) -> float:
    """Pearson's, of ranks by counting."""

    def ranks(values: list[float]) -> list[float]:
        return [
            sum(other < value for other in values) + (values.count(value) + 1) / 2
            for value in values
        ]

    return float(np.corrcoef(ranks(ours), ranks(theirs))[0, 1])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=4, max_size=9))
@settings(max_examples=15, deadline=None)
def test_the_value_is_spearmans_with_ties_at_their_mean(pairs: list[tuple[int, int]]) -> None:
    ours, theirs = ([float(value) for value in each] for each in zip(*pairs, strict=True))
    found = spearman(ours, theirs, names(len(pairs)))
    if len(set(ours)) == 1 or len(set(theirs)) == 1:
        assert found is None
    else:
        assert found is not None
        assert found.value == pytest.approx(by_hand(ours, theirs))
        assert -1.0000001 <= found.low <= found.high <= 1.0000001


def test_a_planted_correlation_is_resolved() -> None:
    chance = np.random.default_rng(0)
    signal = chance.normal(size=60)
    found = spearman(signal, signal + chance.normal(size=60), names(20, 3))
    assert found is not None
    assert found.resolves(0) and found.low > 0.2


def test_an_absent_one_is_not_resolved_in_19_of_20_samples() -> None:
    chance = np.random.default_rng(1)
    false = 0
    for _ in range(40):
        found = spearman(chance.normal(size=40), chance.normal(size=40), names(40))
        assert found is not None
        false += found.resolves(0)
    assert false <= 5


def test_points_of_one_request_are_one_witness() -> None:
    """Ten requests measured thirty times are no three hundred requests."""
    chance = np.random.default_rng(2)
    level, other = chance.normal(size=10), chance.normal(size=10)
    ours, theirs = np.repeat(level, 30), np.repeat(other, 30)
    together = spearman(ours, theirs, names(10, 30))
    apart = spearman(ours, theirs, names(300))
    assert together is not None and apart is not None
    assert together.value == pytest.approx(apart.value)
    assert together.high - together.low > 3 * (apart.high - apart.low)


def test_what_both_owe_to_a_third_is_taken_out() -> None:
    chance = np.random.default_rng(3)
    length = chance.normal(size=200)
    ours, theirs = (length + 0.5 * chance.normal(size=200) for _ in range(2))
    plain = spearman(ours, theirs, names(200))
    partial = partial_spearman(ours, theirs, length, names(200))
    assert plain is not None and plain.low > 0.5
    assert partial is not None and not partial.resolves(0)
    assert partial_spearman(length, theirs, length, names(200)) is None, "nothing is left of it"


def test_infinite_figures_have_a_rank() -> None:
    found = spearman([1, 2, 3, 4], [1, 2, np.inf, np.inf], names(4))
    assert found is not None and found.value == pytest.approx(by_hand([1, 2, 3, 4], [1, 2, 9, 9]))


def test_too_little_says_nothing() -> None:
    assert spearman([1, 2], [1, 2], names(2)) is None
    assert spearman([1, 2, 3], [1, 2, 3], ["one"] * 3) is None
    assert spearman([1, 1, 1], [1, 2, 3], names(3)) is None


def test_a_share_is_over_points_and_its_interval_over_requests() -> None:
    found = share([True, True, False, False], ["a", "a", "b", "b"])
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)

"""Where the curve falls to 1."""

from __future__ import annotations

import pytest

from growpage.bench.throughput.crossover import find_crossover


def test_it_is_interpolated_between_two_pools() -> None:
    found = find_crossover([0.2, 0.4, 0.8], [2.0, 1.5, 0.5])
    assert found.at == pytest.approx(0.6)
    assert found.text == "it pays below a pool of 60% of the need, and not above"


def test_the_order_of_the_pools_does_not_matter() -> None:
    assert find_crossover([0.8, 0.2, 0.4], [0.5, 2.0, 1.5]) == find_crossover(
        [0.2, 0.4, 0.8], [2.0, 1.5, 0.5]
    )


def test_a_point_on_the_line_is_the_crossover() -> None:
    assert find_crossover([0.2, 0.5, 1.0], [1.4, 1.0, 1.0]).at == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ([2.0, 1.5, 1.01], "no crossover: it pays still at 90%, the largest pool"),
        ([0.9, 1.0, 0.8], "no crossover: it pays nowhere from 10% to 90% of the need"),
    ],
)
def test_where_there_is_none_it_says_so(ratios: list[float], text: str) -> None:
    found = find_crossover([0.1, 0.5, 0.9], ratios)
    assert found.at is None
    assert found.text == text


def test_one_pool_has_no_crossover() -> None:
    assert find_crossover([0.2], [1.5]).text.startswith("one pool was measured")


def test_a_curve_that_crosses_more_than_once_counts_from_its_last_fall() -> None:
    found = find_crossover([0.1, 0.2, 0.3, 0.4, 0.5], [1.2, 0.8, 1.2, 1.2, 0.8])
    assert found.at == pytest.approx(0.45)
    assert "the curve crosses 1 more than once from 10% to 50%" in found.text
    rising_first = find_crossover([0.1, 0.2, 0.3], [0.8, 1.2, 0.8])
    assert rising_first.at == pytest.approx(0.25)
    assert "more than once" in rising_first.text

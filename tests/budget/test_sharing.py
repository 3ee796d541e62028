"""Who gives pages: rules against their own definition, and what holds for every rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growpage.budget.sharing import (
    GIVER_RULES,
    Holding,
    largest,
    least_loss,
    pages_above_floors,
    pages_to_give,
    widest_margin,
)

PAGE = 8
holdings = st.lists(
    st.builds(
        Holding,
        tokens=st.integers(1, 200),
        floor=st.integers(0, 100),
        losses=st.none() | st.lists(st.floats(0, 1), min_size=1, max_size=4).map(tuple),
        needed=st.none() | st.integers(0, 150),
    ),
    max_size=8,
)


@pytest.mark.parametrize("rule", GIVER_RULES.values(), ids=list(GIVER_RULES))
@given(held=holdings, wanted=st.integers(0, 40))
def test_as_much_as_is_wanted_or_as_floors_allow(rule, held, wanted) -> None:  # type: ignore[no-untyped-def]
    pages = pages_to_give(held, wanted, PAGE, rule)
    assert sum(pages) == min(wanted, pages_above_floors(held, PAGE))
    for one, given_pages in zip(held, pages, strict=True):
        assert given_pages == 0 or one.tokens - given_pages * PAGE >= one.floor


@given(held=holdings, wanted=st.integers(0, 40))
def test_the_largest_give_until_they_are_level(held: list[Holding], wanted: int) -> None:
    """After all giving, whoever gave is no smaller than any that could have given instead by more
    than a page."""
    pages = pages_to_give(held, wanted, PAGE, largest)
    after = [one.tokens - given_pages * PAGE for one, given_pages in zip(held, pages, strict=True)]
    able = [left for one, left in zip(held, after, strict=True) if left - PAGE >= one.floor]
    for left, given_pages in zip(after, pages, strict=True):
        if given_pages:
            assert left + PAGE >= max(able, default=0)


def test_of_equal_caches_the_last_admitted_gives() -> None:
    assert pages_to_give([Holding(64, 0)] * 3, 1, PAGE, largest) == [0, 0, 1]


def test_the_least_loss_counts_page_by_page() -> None:
    """What the next page costs, not what all pages so far cost."""
    held = [Holding(80, 0, (0.10, 0.12, 0.30)), Holding(40, 0, (0.05, 0.20))]
    assert pages_to_give(held, 1, PAGE, least_loss) == [0, 1]
    assert pages_to_give(held, 2, PAGE, least_loss) == [1, 1]
    assert pages_to_give(held, 3, PAGE, least_loss) == [2, 1]  # 0.02 more, against 0.15


def test_beyond_what_was_measured_a_page_counts_as_the_whole_loss() -> None:
    held = [Holding(80, 0, (0.05,)), Holding(80, 0, (0.01, 0.07))]
    assert pages_to_give(held, 2, PAGE, least_loss) == [1, 1]
    assert pages_to_give(held, 4, PAGE, least_loss) == [3, 1]


def test_an_unknown_loss_gives_only_when_nobody_knows_better() -> None:
    held = [Holding(800, 0, None), Holding(24, 8, (0.9,))]
    assert pages_to_give(held, 2, PAGE, least_loss) == [0, 2]
    assert pages_to_give(held, 3, PAGE, least_loss) == [1, 2]


@given(held=holdings, wanted=st.integers(0, 40))
def test_the_widest_margins_give_page_by_page(held: list[Holding], wanted: int) -> None:
    """Against asking, for every page, each request that could give one."""
    left = [one.tokens for one in held]
    for _ in range(wanted):
        margins = {
            i: left[i] - (one.floor if one.needed is None else one.needed)
            for i, one in enumerate(held)
            if left[i] - PAGE >= one.floor
        }
        if not margins:
            break
        widest = max(margins.values())
        left[max(i for i in margins if margins[i] == widest)] -= PAGE
    given_pages = pages_to_give(held, wanted, PAGE, widest_margin)
    assert [one.tokens - PAGE * n for one, n in zip(held, given_pages, strict=True)] == left


def test_a_large_cache_that_is_needed_is_spared() -> None:
    held = [Holding(200, 0, needed=190), Holding(100, 0, needed=20)]
    assert pages_to_give(held, 2, PAGE, widest_margin) == [0, 2]
    assert pages_to_give(held, 2, PAGE, largest) == [2, 0]

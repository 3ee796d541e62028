"""Who gives pages: rules against their own definition, and what holds for every rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growpage.budget.sharing import (
    GIVER_RULES,
    Holding,
    largest,
    least_evicted,
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
        losses=st.none() | st.lists(st.floats(0, 1), max_size=4).map(tuple),
        needed=st.none() | st.integers(0, 150),
        evicted=st.integers(0, 300),
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


def most_tokens(held: list[Holding], left: list[int], able: list[int]) -> int:
    return max(able, key=lambda i: (left[i], i))


def largest_share(held: list[Holding], left: list[int], able: list[int]) -> int:
    return max(able, key=lambda i: (left[i] / (held[i].tokens + held[i].evicted), left[i], i))


def smallest_loss(held: list[Holding], left: list[int], able: list[int]) -> int:
    """By the loss of the page after those that have been given."""

    def loss(i: int) -> float:
        losses = held[i].losses or ()
        gone = (held[i].tokens - left[i]) // PAGE
        if gone >= len(losses):
            return losses[-1]
        return losses[gone] - (losses[gone - 1] if gone else 0)

    known = [i for i in able if held[i].losses]
    return min(known, key=lambda i: (loss(i), -i)) if known else most_tokens(held, left, able)


def most_margin(held: list[Holding], left: list[int], able: list[int]) -> int:
    def margin(i: int) -> int:
        needed = held[i].needed
        return left[i] - (held[i].floor if needed is None else needed)

    return max(able, key=lambda i: (margin(i), i))


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [
        (GIVER_RULES["largest"], most_tokens),
        (GIVER_RULES["least_evicted"], largest_share),
        (GIVER_RULES["least_loss"], smallest_loss),
        (GIVER_RULES["widest_margin"], most_margin),
    ],
    ids=list(GIVER_RULES),
)
@given(held=holdings, wanted=st.integers(0, 40), before=st.data())
def test_pages_are_given_one_at_a_time_by_the_request_that_the_rule_names(
    rule,  # type: ignore[no-untyped-def]
    chosen: Callable[[list[Holding], list[int], list[int]], int],
    held: list[Holding],
    wanted: int,
    before: st.DataObject,
) -> None:
    """Against choosing, for every page, among all requests that could give one."""
    started = [before.draw(st.integers(0, 3)) for _ in held]
    left = [one.tokens - n * PAGE for one, n in zip(held, started, strict=True)]
    for _ in range(wanted - sum(started)):
        able = [i for i, one in enumerate(held) if left[i] - PAGE >= one.floor]
        if not able:
            break
        left[chosen(held, left, able)] -= PAGE
    given_pages = pages_to_give(held, wanted, PAGE, rule, started)
    assert [one.tokens - PAGE * n for one, n in zip(held, given_pages, strict=True)] == left


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


def test_all_are_evicted_by_the_same_share() -> None:
    """A long request and a short one lose pages in proportion to what they have seen."""
    held = [Holding(160, 0), Holding(80, 0)]
    assert pages_to_give(held, 12, PAGE, least_evicted) == [8, 4]
    # What was lost before counts: the one that is whole gives first.
    held = [Holding(80, 0, evicted=80), Holding(80, 0)]
    assert pages_to_give(held, 5, PAGE, least_evicted) == [0, 5]


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


def test_a_large_cache_that_is_needed_is_spared() -> None:
    held = [Holding(200, 0, needed=190), Holding(100, 0, needed=20)]
    assert pages_to_give(held, 2, PAGE, widest_margin) == [0, 2]
    assert pages_to_give(held, 2, PAGE, largest) == [2, 0]

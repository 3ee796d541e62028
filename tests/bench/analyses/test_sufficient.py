"""B* on ladders that were made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growpage.bench.analyses.sufficient import (
    figure,
    ladder,
    least_sufficient,
    needs,
    rungs_of,
    summarise,
    table,
)
from growpage.bench.look import to_png
from growpage.bench.replay import Measurement
from growpage.budget.errors import ConfigError
from tests.bench.analyses.made_up import measurement, part

BUDGETS = [64, 96, 128]
KL = {
    "modest": {64: 0.01, 96: 0.01, 128: 0.0},
    "usual": {64: 0.3, 96: 0.05, 128: 0.01},
    "lucky at 64": {64: 0.04, 96: 0.2, 128: 0.02},
    "hungry": {64: 0.9, 96: 0.5, 128: 0.1},
    "short": {64: 0.9, 96: 0.3, 128: 0.0},
}
FAMILIES = {name: "long" if name != "short" else "brief" for name in KL}


@pytest.fixture(scope="module")
def made_up() -> Measurement:
    held = dict.fromkeys(KL, 3.0)
    parts = [
        part(rung, {name: kl[rung.settings["budget"]] for name, kl in KL.items()}, held)
        for rung in rungs_of(BUDGETS)
    ]
    return measurement({name: 100 if name == "short" else 200 for name in KL}, parts, FAMILIES)


def test_from_b_star_on_every_budget_suffices() -> None:
    least = {name: least_sufficient(kl, 0.05) for name, kl in KL.items()}
    assert least == {"modest": 64, "usual": 96, "lucky at 64": 128, "hungry": None, "short": 128}


@given(st.dictionaries(st.integers(1, 99), st.floats(0, 1), min_size=1), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_b_star_keeps_its_promise_and_no_lower_budget_does(
    kl: dict[int, float], epsilon: float
) -> None:
    least = least_sufficient(kl, epsilon)
    keeping = [budget for budget in kl if all(kl[each] <= epsilon for each in kl if each >= budget)]
    assert least == min(keeping, default=None)


def test_a_kl_that_is_not_a_number_does_not_suffice() -> None:
    assert least_sufficient({64: float("nan"), 96: 0.0}, 0.05) == 96
    assert least_sufficient({64: 0.0, 96: float("nan")}, 0.05) is None


def test_a_budget_above_the_length_is_the_length(made_up: Measurement) -> None:
    found = needs(made_up, BUDGETS, 0.05)
    assert found["short"].sufficient == 100
    assert found["short"].share == 1
    assert found["usual"].share == pytest.approx(0.48)
    assert found["hungry"].share is None


def test_the_spread_is_of_requests_own_figures(made_up: Measurement) -> None:
    spread = summarise(needs(made_up, BUDGETS, 0.05), 0.05)["spread"]
    assert (spread["all"]["p10"], spread["all"]["p50"]) == (64, 100)
    assert spread["all"]["p90"] is None, "not even the largest budget suffices there"
    assert spread["all"]["ratio"] is None
    assert spread["all"]["none_suffices"] == 1
    assert spread["brief"]["ratio"] == 1
    assert list(spread) == ["all", "brief", "long"]


def test_the_ladder_grows_and_stays_below_the_longest_request() -> None:
    rungs = ladder(300, 32, 52)
    assert rungs[0] == 64 and rungs[-1] < 300
    assert all(rung % 32 == 0 for rung in rungs)
    assert rungs == sorted(set(rungs))
    with pytest.raises(ConfigError, match="--new-tokens"):
        ladder(60, 32, 52)


def test_table_and_figure_say_what_no_budget_sufficed_for(made_up: Measurement) -> None:
    report = summarise(needs(made_up, BUDGETS, 0.05), 0.05)
    shown = table(report)
    assert ">128" in list(shown.columns[4].cells)
    assert shown.caption is not None and "128" in str(shown.caption)
    drawn = figure(report)
    left, right = drawn.axes
    assert "more than 128" in left.get_title(loc="left")
    assert len(right.lines) == len(KL) + 1, "one a request, and epsilon"
    assert to_png(drawn).startswith(b"\x89PNG")

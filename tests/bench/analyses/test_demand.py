"""Averages over requests of different lengths."""

from __future__ import annotations

import pytest

from growpage.bench.analyses.demand import QUANTITIES, average, figure, summarise, table
from growpage.bench.look import to_png
from tests.bench.analyses.made_up import course, observed

COURSES = {
    "long": course([20, 30, 40], [1, -1, 2]),
    "short": course([10], [3]),
    "later": course([50, 60], [0, 4], prompt=96),
}


def test_each_length_averages_those_that_reach_it() -> None:
    bands = average(COURSES, QUANTITIES["short"])
    assert [(band["position"], band["mean"], band["requests"]) for band in bands] == [
        (95, 15, 2),
        (127, 40, 2),
        (159, 50, 2),
    ]
    assert (bands[0]["q25"], bands[0]["q75"]) == (12.5, 17.5)
    assert average(COURSES, QUANTITIES["loss_3"]) == [], "no demand has so many losses"


def test_the_report_has_every_mass() -> None:
    report = summarise({mass: observed(COURSES, mass) for mass in (0.8, 0.9)})
    row = report["masses"]["0.9"]
    assert row["measurements"] == 6
    assert row["short"] == pytest.approx({"first": 80 / 3, "last": 110 / 3})
    assert row["positive_deltas"]["value"] == pytest.approx(4 / 6)
    assert row["requests"]["long"]["points"][0]["sparsity"] == pytest.approx(20 / 95)
    assert table(report).row_count == 2
    drawn = figure(report)
    assert len(drawn.axes) == 6
    assert [text.get_text() for text in drawn.axes[1].get_legend().get_texts()] == [
        "p = 0.8",
        "p = 0.9",
    ]
    assert to_png(drawn).startswith(b"\x89PNG")

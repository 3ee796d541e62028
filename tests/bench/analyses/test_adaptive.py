"""Policies that give by need, by length, and the same to all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from growpage.bench.analyses.adaptive import (
    FLAT,
    NOTHING_LEFT,
    default_contenders,
    figure,
    summarise,
    table,
)
from growpage.bench.analyses.sufficient import Need
from growpage.bench.contenders import Contender
from growpage.bench.look import to_png
from tests.bench.analyses.made_up import measurement, part

COUNT = 40


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    chance = np.random.default_rng(0)
    names = [f"r{index:02}" for index in range(COUNT)]
    lengths = {name: int(chance.integers(150, 400)) for name in names}
    least = {name: int(chance.integers(2, 8)) * 32 for name in names}
    needs = {
        name: Need("even" if at % 2 else "odd", lengths[name], {}, least[name] if at else None)
        for at, name in enumerate(names)
    }
    held = {
        "by need": {
            name: 1 + needs[name].rank / 32 if at else 9.0 for at, name in enumerate(names)
        },
        "by length": {name: lengths[name] / 32 for name in names},
        "fixed": dict.fromkeys(names, 5.0),
    }
    kl = dict.fromkeys(names, 0.02)
    parts = [part(Contender.of(f"{name}=elastic"), kl, pages) for name, pages in held.items()]
    return summarise(measurement(lengths, parts), needs, list(held))


def rho(report: dict[str, Any], contender: str, which: str) -> Any:
    return report["contenders"][contender]["correlation"]["mean"][which]


def test_capacity_by_need_is_found_also_at_equal_length(report: dict[str, Any]) -> None:
    assert rho(report, "by need", "with_need")["low"] > 0.8
    assert rho(report, "by need", "with_need_at_equal_length")["low"] > 0.8


def test_capacity_by_length_is_no_more_than_length(report: dict[str, Any]) -> None:
    assert rho(report, "by length", "with_need") == report["length_and_need"]
    assert rho(report, "by length", "with_need_at_equal_length") is None
    assert not report["length_and_need"]["resolved"]


def test_the_same_for_all_is_said_to_be_flat(report: dict[str, Any]) -> None:
    assert rho(report, "fixed", "with_need") is None
    rows = table(report)
    assert list(rows.columns[4].cells)[2] == FLAT
    assert list(rows.columns[5].cells)[1] == NOTHING_LEFT
    assert "not resolved" in str(rows.caption)


def test_it_is_drawn_with_those_that_no_budget_suffices(report: dict[str, Any]) -> None:
    drawn = figure(report)
    titles = [axes.get_title(loc="left").splitlines()[0] for axes in drawn.axes]
    assert titles == ["by need", "by length", "fixed"]
    assert to_png(drawn).startswith(b"\x89PNG")


def test_fixed_is_compared_at_the_middle_of_the_ladder() -> None:
    names = [each.name for each in default_contenders([64, 96, 128, 160])]
    assert names == ["growpage", "every", "elastic", "fixed:budget=128"]

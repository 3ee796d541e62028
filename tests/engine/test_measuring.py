"""Measurements that are put off: all while memory is idle, and those that are too many at once."""

from __future__ import annotations

import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from growpage.budget.config import BudgetConfig
from growpage.budget.demand import Demand
from growpage.budget.policies import make_policy
from growpage.budget.rollout import UNSTAGED
from growpage.engine.accounts import Account, Tally
from growpage.engine.capacity import CapacityController
from growpage.engine.journal import Journal
from growpage.engine.limits import GrowthLimits
from growpage.engine.measuring import MEASURE_LEAD, MEASURED_AT_ONCE, MEASURED_EVERY
from growpage.engine.messages import DemandReport
from growpage.engine.observations import Observations

BLOCK, POOL, PROMPT = 32, 100, 20


class Book:
    """Pages of which ``free_pages`` are free; each request holds three."""

    block_size = BLOCK
    total_pages = POOL

    def __init__(self, names: list[str]) -> None:
        self.accounts = {name: Account(capacity=3, promised=3, held=3) for name in names}
        self.tally = Tally()
        self.free_pages = POOL


def controller_of(book: Any, **settings: Any) -> CapacityController:
    config = BudgetConfig.of({"policy": "elastic", **settings})
    journal = Journal("enforce", Observations(wanted=False))
    limits = GrowthLimits(lambda: UNSTAGED, time.monotonic)
    policy = make_policy(config, BLOCK)
    return CapacityController(config, policy, book, journal, limits, 4096, time.monotonic)


def request_at(name: str, computed: int) -> Any:
    """A request that has computed so many tokens and is to compute the next one."""
    return SimpleNamespace(
        request_id=name,
        num_computed_tokens=computed,
        num_prompt_tokens=PROMPT,
        num_output_tokens=computed + 1 - PROMPT,
        num_tokens=computed + 1,
        num_output_placeholders=0,
        max_tokens=1000,
    )


def due(controller: CapacityController, book: Book, computed: int) -> list[str]:
    controller.decide([], lambda: [])
    return [
        name
        for name, account in book.accounts.items()
        if controller.is_due_for_measurement(request_at(name, computed), account)
    ]


BOUNDARY = 3 * BLOCK - MEASURE_LEAD


def test_nobody_is_measured_while_memory_is_idle_and_everybody_soon_after() -> None:
    names = [f"r{index}" for index in range(2 * MEASURED_AT_ONCE + 1)]
    book = Book(names)
    controller = controller_of(book)
    assert due(controller, book, BOUNDARY) == []
    assert due(controller, book, BOUNDARY - 5) == []
    book.free_pages = POOL // 2 - 1
    for _ in range(BudgetConfig().warmup):
        assert due(controller, book, BOUNDARY) == [], "summaries have lapsed, and are cold"
    measured = [due(controller, book, BOUNDARY - 5) for _ in range(4)]
    assert [len(step) for step in measured] == [MEASURED_AT_ONCE, MEASURED_AT_ONCE, 1, 0]
    assert sorted(name for step in measured for name in step) == names


@pytest.mark.parametrize("count", [1, MEASURED_AT_ONCE, 3 * MEASURED_AT_ONCE + 1, 8 * BLOCK])
def test_a_step_measures_a_few_and_the_next_ones_the_others(count: int) -> None:
    names = [f"r{index}" for index in range(count)]
    book = Book(names)
    book.free_pages = 10
    controller = controller_of(book)
    most = max(MEASURED_AT_ONCE, 2 * count // BLOCK)
    first = due(controller, book, BOUNDARY)
    assert len(first) == min(most, count)
    later = [due(controller, book, BOUNDARY + 1) for _ in range(BLOCK // 2)]
    assert all(len(step) <= most for step in later)
    assert sorted([*first, *(name for step in later for name in step)]) == sorted(names)
    assert not controller.measuring.catches_up


def test_a_policy_that_decides_by_this_very_boundary_measures_all_of_it() -> None:
    names = [f"r{index}" for index in range(3 * MEASURED_AT_ONCE)]
    controller = controller_of(Book(names), policy="growpage")
    assert due(controller, Book(names), BOUNDARY) == names
    assert not controller.measuring.catches_up


@pytest.mark.parametrize(
    ("settings", "gap"),
    [
        ({}, MEASURED_EVERY),
        ({"giver": "largest"}, MEASURED_EVERY),
        ({"giver": "least_loss"}, BLOCK),
        ({"giver": "widest_margin"}, BLOCK),
        ({"floor_loss": 0.05}, BLOCK),
        ({"track_entropy": True}, BLOCK),
        ({"max_pages": 8}, BLOCK),
        ({"policy": "growpage"}, BLOCK),
    ],
)
def test_where_only_floors_depend_on_it_a_request_is_measured_at_some_boundaries(
    settings: dict[str, Any], gap: int
) -> None:
    book = Book(["r"])
    book.free_pages = 10
    controller = controller_of(book, **settings)
    account, measured = book.accounts["r"], []
    for computed in range(PROMPT + 1, PROMPT + 500):
        pages = -(-(computed + 1) // BLOCK)
        account.held = account.capacity = max(pages, 3)
        if due(controller, book, computed):
            measured.append(computed)
            demand = Demand(30.0, 30.0, computed)
            account.report = DemandReport(epoch=0, position=computed, demand=demand)
    gaps = {later - sooner for sooner, later in pairwise(measured)}
    assert measured[0] == BOUNDARY
    assert gaps == {gap}


def test_memory_is_idle_while_half_of_it_is_spare() -> None:
    book = Book(["r"])
    controller = controller_of(book)
    for free, idle in ((POOL, True), (POOL // 2, True), (POOL // 2 - 1, False), (POOL, True)):
        book.free_pages = free
        controller.decide([], lambda: [])
        assert controller.measuring.idle == idle


@pytest.mark.parametrize("settings", [{"track_entropy": True}, {"max_pages": 8}])
def test_figures_that_somebody_wants_are_always_made(settings: dict[str, Any]) -> None:
    book = Book(["r"])
    assert due(controller_of(book, **settings), book, BOUNDARY) == ["r"]


def test_the_prompt_is_never_measured() -> None:
    book = Book(["r"])
    book.free_pages = 0
    assert due(controller_of(book), book, PROMPT) == []

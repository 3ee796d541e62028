"""What each policy decides at a boundary, and the capacity it starts with."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from growpage.budget.config import BudgetConfig, ConfigError, PolicyName
from growpage.budget.demand import Demand
from growpage.budget.policies import (
    POLICIES,
    Action,
    Boundary,
    Policy,
    Pool,
    make_policy,
    measures_demand,
    tracks_entropy,
)

POOL = Pool(total_pages=100, spare_pages=10)


def policy(name: str, block_size: int = 32, **settings: Any) -> Policy:
    return make_policy(BudgetConfig.of({"policy": name, **settings}), block_size)


def boundary(ordinal: int = 0, delta: float | None = None) -> Boundary:
    demand = None if delta is None else Demand(short=50 + delta, long=50, cached=128)
    return Boundary(pages=4, ordinal=ordinal, demand=demand)


def test_every_name_of_the_configuration_has_a_policy() -> None:
    assert tuple(POLICIES) == get_args(PolicyName)
    needs_demand = {name for name in POLICIES if policy(name).needs_demand}
    assert needs_demand == {"growpage", "elastic", "entropy"}
    assert {name for name in POLICIES if policy(name).needs_entropy} == {"entropy"}
    assert {name for name in POLICIES if policy(name).shares} == {"elastic"}
    assert {name for name in POLICIES if not policy(name).compresses} == {"full"}


@pytest.mark.parametrize("delta", [None, -5.0, 5.0])
@pytest.mark.parametrize("ordinal", [0, 9])
def test_full_grows_and_fixed_compresses(delta: float | None, ordinal: int) -> None:
    assert policy("full").decide(boundary(ordinal, delta), POOL) is Action.GROW
    assert policy("fixed").decide(boundary(ordinal, delta), POOL) is Action.COMPRESS


@pytest.mark.parametrize(
    ("tau", "delta", "action"),
    [
        (0.0, None, Action.GROW),
        (0.0, 0.0, Action.COMPRESS),
        (0.0, 0.25, Action.GROW),
        (0.0, -0.25, Action.COMPRESS),
        (8.0, 8.0, Action.COMPRESS),
        (8.0, 8.25, Action.GROW),
        (-4.0, -3.5, Action.GROW),
        (-4.0, -4.0, Action.COMPRESS),
        (1e9, None, Action.GROW),
    ],
)
def test_growpage_grows_when_the_short_working_set_is_wider(
    tau: float, delta: float | None, action: Action
) -> None:
    assert policy("growpage", tau=tau).decide(boundary(delta=delta), POOL) is action


def test_with_a_quantile_the_differences_seen_so_far_are_the_threshold() -> None:
    """Until 32 have been seen tau decides; the one that is decided about is not among them."""
    chosen = policy("growpage", tau=3.0, tau_quantile=0.75)
    seen: list[float] = []
    for n in range(200):
        delta = float((37 * n) % 101) - 80
        threshold = 3.0
        if len(seen) >= 32:
            threshold = sorted(seen)[-(-3 * len(seen) // 4) - 1]
        expected = Action.GROW if delta > threshold else Action.COMPRESS
        assert chosen.decide(boundary(delta=delta), POOL) is expected
        seen.append(delta)


def test_a_boundary_without_a_measurement_teaches_the_quantile_nothing() -> None:
    chosen = policy("growpage", tau=0.0, tau_quantile=0.5)
    for _ in range(100):
        assert chosen.decide(boundary(), POOL) is Action.GROW
    assert chosen.decide(boundary(delta=-1.0), POOL) is Action.COMPRESS, "tau still decides"


def test_two_policies_remember_nothing_of_each_other() -> None:
    first, second = (policy("growpage", tau_quantile=0.5) for _ in range(2))
    for _ in range(50):
        first.decide(boundary(delta=20.0), POOL)
    assert first.decide(boundary(delta=10.0), POOL) is Action.COMPRESS
    assert second.decide(boundary(delta=10.0), POOL) is Action.GROW


@example(Decimal("0.29"), 100)  # 100 * 0.29 < 29 in floating point
@given(st.decimals(0, 1, places=3), st.integers(0, 300))
def test_every_grows_at_its_rate(rate: Decimal, boundaries: int) -> None:
    every = policy("every", growth_rate=float(rate))
    grown = sum(
        every.decide(boundary(ordinal), POOL) is Action.GROW for ordinal in range(boundaries)
    )
    assert grown == boundaries * Fraction(rate) // 1


def test_every_spreads_its_growth() -> None:
    every = policy("every", growth_rate=0.25)
    grows = [every.decide(boundary(n), POOL) is Action.GROW for n in range(12)]
    assert grows == [False, False, False, True] * 3


@pytest.mark.parametrize("name", ["full", "growpage", "every", "elastic", "entropy"])
@pytest.mark.parametrize(
    ("prompt", "step", "pages"),
    [
        (0, 32, 4),  # min_pages
        (80, 32, 4),  # 80 + 16 recent fill 3 pages exactly; and one step
        (81, 32, 5),
        (80, 64, 5),
        (1000, 32, 33),
    ],
)
def test_initial_capacity_is_the_prompt_and_a_step(
    name: str, prompt: int, step: int, pages: int
) -> None:
    assert policy(name, step=step, protect_prompt=True).initial_pages(prompt) == pages


@given(st.integers(0, 5000), st.integers(1, 3), st.integers(1, 40), st.sampled_from([16, 32, 128]))
def test_first_eviction_can_spare_the_prompt(
    prompt: int, steps: int, recent: int, block: int
) -> None:
    chosen = policy(
        "growpage", block, step=steps * block, recent=recent, window=1, min_pages=8, sink=4
    )
    after_eviction = (chosen.initial_pages(prompt) - steps) * block
    assert after_eviction >= prompt + recent


@pytest.mark.parametrize(("budget", "pages"), [(512, 16), (511, 15), (64, 2)])
def test_fixed_capacity_is_the_budget_whatever_the_prompt(budget: int, pages: int) -> None:
    for prompt in (1, 100, 10_000):
        assert policy("fixed", budget=budget).initial_pages(prompt) == pages


@pytest.mark.parametrize("name", ["growpage", "every", "elastic", "entropy"])
def test_a_pool_must_hold_the_least_capacity(name: str) -> None:
    assert policy(name, min_pages=7).least_pages() == 7
    assert policy("fixed", budget=100).least_pages() == 3


@pytest.mark.parametrize("delta", [None, -5.0, 5.0])
def test_elastic_grows_whatever_is_measured(delta: float | None) -> None:
    assert policy("elastic").decide(boundary(delta=delta), POOL) is Action.GROW


@pytest.mark.parametrize(
    ("prompt", "short", "pages"),
    [
        (0, 10, 4),  # min_pages
        (100, 27.5, 5),  # 128 tokens are 4 pages; and one step
        (100, 28.5, 6),
        (80, 0.0, 4),  # the prompt and the recent tokens: the capacity that it was admitted with
    ],
)
def test_the_floor_is_the_protected_prompt_and_the_working_set(
    prompt: int, short: float, pages: int
) -> None:
    demand = Demand(short=short, long=90, cached=500)
    assert policy("elastic", protect_prompt=True).floor_pages(prompt, demand) == pages


@pytest.mark.parametrize("protects", [False, True])
def test_without_a_measurement_the_floor_is_the_prompt_and_a_step(protects: bool) -> None:
    assert policy("elastic", protect_prompt=protects).floor_pages(100, None) == 5


@pytest.mark.parametrize(
    ("share", "protects", "pages"),
    [
        (1, False, 14),  # 416 tokens with the recent ones are 13 pages; and a step
        (0.5, False, 8),
        (0.01, False, 4),  # min_pages
        (0.5, True, 14),
    ],
)
def test_without_a_measurement_a_share_of_the_prompt_may_be_the_floor(
    share: float, protects: bool, pages: int
) -> None:
    chosen = policy("elastic", prompt_floor=share, protect_prompt=protects)
    assert chosen.floor_pages(400, None) == pages


def test_the_floor_that_was_promised_is_the_initial_capacity_whatever_is_measured() -> None:
    chosen = policy("elastic", floor="promised", protect_prompt=True)
    wide = Demand(short=400, long=90, cached=500, losses=(0.9,))
    assert chosen.floor_pages(100, wide) == chosen.initial_pages(100) == 5


@pytest.mark.parametrize(("bound", "pages"), [(0.001, 11), (0.05, 10), (0.1, 9), (0.9, 8)])
def test_the_floor_by_predicted_loss(bound: float, pages: int) -> None:
    """320 tokens are cached; one step is left above what the loss allows."""
    demand = Demand(short=300, long=90, cached=320, losses=(0.05, 0.1, 0.2))
    assert policy("elastic", floor_loss=bound).floor_pages(20, demand) == pages


@pytest.mark.parametrize(
    ("pages", "entropy", "density", "action"),
    [
        # Four pages, and a fifth of that for each nat: 5.6 pages at 2 nats, 8 at 5.
        (5, 2.0, 1.0, Action.GROW),
        (6, 2.0, 1.0, Action.COMPRESS),
        (7, 5.0, 1.0, Action.GROW),
        (8, 5.0, 1.0, Action.COMPRESS),
        (8, 5.0, 0.7, Action.GROW),
        (8, 2.1, 0.7, Action.COMPRESS),
        (8, 2.15, 0.7, Action.GROW),
        (8, 2.15, 0.71, Action.COMPRESS),
        (4, 0.0, 0.2, Action.COMPRESS),
        (4, 0.01, 1.0, Action.GROW),
    ],
)
def test_entropy_grows_to_its_boundary_and_beyond_it_while_wide_and_not_settled(
    pages: int, entropy: float, density: float, action: Action
) -> None:
    demand = Demand(short=10, long=10, cached=200, entropy=entropy, density=density)
    seen = Boundary(pages=pages, ordinal=0, demand=demand)
    assert policy("entropy").decide(seen, POOL) is action


@pytest.mark.parametrize(
    ("settings", "action"),
    [
        ({}, Action.COMPRESS),
        ({"min_pages": 7}, Action.GROW),
        ({"entropy_boundary": 0.6}, Action.GROW),
        ({"entropy_dense": 0.8}, Action.GROW),
        ({"entropy_dense": 0.8, "entropy_wide": 2.5}, Action.COMPRESS),
    ],
)
def test_the_thresholds_of_entropy_are_settings(settings: dict[str, Any], action: Action) -> None:
    demand = Demand(short=10, long=10, cached=200, entropy=2.5, density=0.75)
    seen = Boundary(pages=8, ordinal=0, demand=demand)
    assert policy("entropy", **settings).decide(seen, POOL) is action


@pytest.mark.parametrize("demand", [None, Demand(short=10, long=10, cached=200)])
def test_entropy_grows_while_none_is_known(demand: Demand | None) -> None:
    seen = Boundary(pages=50, ordinal=9, demand=demand)
    assert policy("entropy").decide(seen, POOL) is Action.GROW


@pytest.mark.parametrize(
    ("name", "by_itself", "if_asked"),
    [
        ("full", (False, False), (False, False)),
        ("fixed", (False, False), (True, True)),
        ("every", (False, False), (True, True)),
        ("growpage", (True, False), (True, True)),
        ("elastic", (True, False), (True, True)),
        ("entropy", (True, True), (True, True)),
    ],
)
def test_what_is_measured(
    name: str, by_itself: tuple[bool, bool], if_asked: tuple[bool, bool]
) -> None:
    for tracked, expected in ((False, by_itself), (True, if_asked)):
        config = BudgetConfig.of({"policy": name, "track_entropy": tracked})
        assert (measures_demand(config), tracks_entropy(config)) == expected


@pytest.mark.parametrize(
    ("settings", "measures"),
    [
        ({}, True),
        ({"floor": "promised"}, False),
        ({"floor": "promised", "giver": "largest"}, False),
        ({"floor": "promised", "giver": "least_loss"}, True),
        ({"floor": "promised", "giver": "widest_margin"}, True),
        ({"floor_loss": 0.01}, True),
    ],
)
def test_elastic_measures_only_what_its_floors_or_givers_look_at(
    settings: dict[str, object], measures: bool
) -> None:
    chosen = policy("elastic", **settings)
    assert chosen.needs_demand is measures
    assert measures_demand(chosen.config) is measures


def test_elastic_holds_no_prompt_that_is_not_protected() -> None:
    chosen = policy("elastic", protect_prompt=False, min_pages=3)
    demand = Demand(short=200.5, long=150, cached=400)
    assert chosen.initial_pages(400) == 3
    assert chosen.floor_pages(400, demand) == 8  # 201 tokens and a step, in pages of 32
    promised = policy("elastic", protect_prompt=False, min_pages=3, floor="promised")
    assert promised.floor_pages(400, demand) == promised.floor_pages(400, None) == 3


def test_a_policy_that_does_not_fit_the_block_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="step is 32, but must be a multiple of the block size"):
        policy("growpage", block_size=64, step=32)

"""The demand signal against a loop over layers and heads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from growpage.budget.demand import Demand, at_equal_norm, demand_by_head
from growpage.budget.summaries import LONG, SHORT


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mass", [0.5, 0.9])
def test_working_sets_are_those_of_a_loop(group: int, dtype: torch.dtype, mass: float) -> None:
    layers, kv_heads, tokens, dim = 3, 2, 50, 8
    generator = torch.Generator().manual_seed(1)
    summaries = torch.randn(2, layers, kv_heads * group, dim, generator=generator)
    summaries[SHORT] *= 3  # a sharper attention, so a smaller working set
    keys = torch.randn(layers, kv_heads, tokens, dim, generator=generator).to(dtype)
    expected = torch.zeros(layers * kv_heads * group, 2)
    for which in (SHORT, LONG):
        for layer in range(layers):
            for head in range(kv_heads * group):
                row = layer * kv_heads * group + head
                logits = (
                    keys[layer, head // group].double() @ summaries[which, layer, head].double()
                )
                weights = sorted((logits * 0.4).softmax(-1).tolist(), reverse=True)
                held = 0.0
                for weight in weights:
                    held += weight
                    expected[row, which] += 1
                    if held >= mass:
                        break
    found = demand_by_head(summaries, keys, 0.4, mass, [])
    assert found[:, :2].tolist() == expected.tolist()
    assert found[:, 2].tolist() == (expected[:, SHORT] - expected[:, LONG]).tolist()
    short, long, delta = found.sum(dim=0)
    assert short < long and delta == short - long


@pytest.mark.parametrize("group", [1, 3])
def test_lost_mass_is_that_of_a_loop(group: int) -> None:
    layers, kv_heads, tokens, dim = 2, 2, 40, 8
    generator = torch.Generator().manual_seed(2)
    summaries = torch.randn(2, layers, kv_heads * group, dim, generator=generator)
    keys = torch.randn(layers, kv_heads, tokens, dim, generator=generator)
    capacities = [32, 10, 1, 40]
    expected = torch.zeros(layers * kv_heads * group, len(capacities), dtype=torch.double)
    for layer in range(layers):
        for head in range(kv_heads * group):
            logits = keys[layer, head // group].double() @ summaries[SHORT, layer, head].double()
            weights = sorted((logits * 0.4).softmax(-1).tolist(), reverse=True)
            lost = torch.tensor([sum(weights[size:]) for size in capacities])
            expected[layer * kv_heads * group + head] = lost
    found = demand_by_head(summaries, keys, 0.4, 0.9, capacities)[:, 3:]
    assert torch.allclose(found, expected, atol=1e-5)
    assert (found[:, 1] > found[:, 0]).all() and (found[:, 0] > found[:, 3]).all()


def test_delta_is_short_minus_long() -> None:
    assert Demand(short=30.5, long=20.0, cached=100).delta == 10.5


def test_delta_is_what_was_worked_out_head_by_head_if_it_was() -> None:
    assert Demand(short=30.5, long=20.0, cached=100, difference=4.0).delta == 4.0


def test_at_equal_norm_only_the_long_one_is_scaled() -> None:
    summaries = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(3))
    summaries[LONG] *= 0.2
    summaries[:, 1, 2] = 0  # no direction: nothing to scale
    found = at_equal_norm(summaries)
    assert torch.equal(found[SHORT], summaries[SHORT])
    torch.testing.assert_close(found[LONG].norm(dim=-1), summaries[SHORT].norm(dim=-1))
    same = torch.cosine_similarity(found[LONG], summaries[LONG], dim=-1)
    assert torch.allclose(same.flatten()[[0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11]], torch.ones(11))


def test_a_longer_average_is_no_wider_at_equal_norm() -> None:
    """The same direction at a fifth of the norm: its attention is flatter, and that is all."""
    generator = torch.Generator().manual_seed(4)
    short = torch.randn(2, 4, 8, generator=generator) * 3
    keys = torch.randn(2, 2, 60, 8, generator=generator)
    summaries = torch.stack((short, short / 5))
    assert (demand_by_head(summaries, keys, 0.4, 0.9, [])[:, 2] < 0).all()
    equal = demand_by_head(at_equal_norm(summaries), keys, 0.4, 0.9, [])
    assert equal[:, 2].abs().max() <= 1, "rounding may move a weight across the mass"


@pytest.mark.parametrize(
    ("figures", "finite"),
    [
        ({}, True),
        ({"entropy": 2.0, "density": 0.5, "losses": (0.1, 0.2)}, True),
        ({"losses": (0.1, math.nan)}, False),
        ({"entropy": math.nan, "density": 0.5}, False),
        ({"entropy": 2.0, "density": math.inf}, False),
        ({"short": math.nan}, False),
        ({"difference": math.inf}, False),
    ],
)
def test_one_figure_that_is_not_finite_spoils_all(figures: dict[str, Any], finite: bool) -> None:
    given = {"short": 30.0, "long": 20.0, "cached": 100, **figures}
    assert Demand(**given).is_finite is finite

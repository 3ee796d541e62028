"""The demand signal against a loop over layers and heads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from growpage.budget.demand import Demand, demand_sums
from growpage.budget.summaries import LONG, SHORT


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mass", [0.5, 0.9])
def test_sums_are_those_of_a_loop(group: int, dtype: torch.dtype, mass: float) -> None:
    layers, kv_heads, tokens, dim = 3, 2, 50, 8
    generator = torch.Generator().manual_seed(1)
    summaries = torch.randn(2, layers, kv_heads * group, dim, generator=generator)
    summaries[SHORT] *= 3  # a sharper attention, so a smaller working set
    keys = torch.randn(layers, kv_heads, tokens, dim, generator=generator).to(dtype)
    expected = [0, 0]
    for which in (SHORT, LONG):
        for layer in range(layers):
            for head in range(kv_heads * group):
                logits = (
                    keys[layer, head // group].double() @ summaries[which, layer, head].double()
                )
                weights = sorted((logits * 0.4).softmax(-1).tolist(), reverse=True)
                held = 0.0
                for weight in weights:
                    held += weight
                    expected[which] += 1
                    if held >= mass:
                        break
    sums = demand_sums(summaries, keys, 0.4, mass, [])
    assert sums.tolist() == [expected[SHORT], expected[LONG]]
    assert sums[0] < sums[1]


@pytest.mark.parametrize("group", [1, 3])
def test_lost_mass_is_that_of_a_loop(group: int) -> None:
    layers, kv_heads, tokens, dim = 2, 2, 40, 8
    generator = torch.Generator().manual_seed(2)
    summaries = torch.randn(2, layers, kv_heads * group, dim, generator=generator)
    keys = torch.randn(layers, kv_heads, tokens, dim, generator=generator)
    capacities = [32, 10, 1, 40]
    expected = torch.zeros(len(capacities), dtype=torch.double)
    for layer in range(layers):
        for head in range(kv_heads * group):
            logits = keys[layer, head // group].double() @ summaries[SHORT, layer, head].double()
            weights = sorted((logits * 0.4).softmax(-1).tolist(), reverse=True)
            expected += torch.tensor([sum(weights[size:]) for size in capacities])
    found = demand_sums(summaries, keys, 0.4, 0.9, capacities)[2:]
    assert torch.allclose(found, expected, atol=1e-5)
    assert found[1] > found[0] > found[3] >= 0


def test_delta_is_short_minus_long() -> None:
    assert Demand(short=30.5, long=20.0, cached=100).delta == 10.5


@pytest.mark.parametrize(
    ("figures", "finite"),
    [
        ({}, True),
        ({"entropy": 2.0, "density": 0.5, "losses": (0.1, 0.2)}, True),
        ({"losses": (0.1, math.nan)}, False),
        ({"entropy": math.nan, "density": 0.5}, False),
        ({"entropy": 2.0, "density": math.inf}, False),
        ({"short": math.nan}, False),
    ],
)
def test_one_figure_that_is_not_finite_spoils_all(figures: dict[str, Any], finite: bool) -> None:
    given = {"short": 30.0, "long": 20.0, "cached": 100, **figures}
    assert Demand(**given).is_finite is finite

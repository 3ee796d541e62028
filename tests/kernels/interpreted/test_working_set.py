"""Sizes and losses without a sort, against the sort, and against exact rationals where they tie."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from growpage.kernels import working_set
from growpage.kernels.reference import working_sets as reference
from growpage.kernels.working_set import working_sets

UNITS = 256  # weights are whole multiples of 1/256: sums of them are exact


@pytest.mark.parametrize(
    ("keys", "mass"),
    [(1, 0.95), (7, 0.0), (7, 5e-324), (7, 1.0), (64, 0.5), (64, 1.0), (700, 0.95), (700, 0.99)],
)
def test_random_rows(keys: int, mass: float) -> None:
    """Wide and narrow rows; at 1.0 it matters to which side of 1 a row's sum is rounded."""
    logits = torch.randn(1, 3, keys, generator=torch.Generator().manual_seed(keys))
    attention = (logits * torch.tensor([0.1, 3.0, 12.0]).view(3, 1)).softmax(dim=-1)
    capacities = [max(1, keys // 2), keys]
    sizes, lost = working_sets(attention, mass, capacities)
    expected_sizes, expected_lost = reference(attention, mass, capacities)
    assert torch.equal(sizes, expected_sizes)
    assert lost.dtype == torch.float64
    torch.testing.assert_close(lost, expected_lost, rtol=0, atol=keys * 2**-52)


@st.composite
def rows(draw: st.DrawFn) -> list[int]:
    """Weights of one row in units: they sum to 1, many are zero or tied."""
    grain = draw(st.sampled_from([1, 8, 64]))
    cuts = draw(st.lists(st.integers(0, UNITS // grain), max_size=11))
    edges = [0, *(grain * cut for cut in sorted(cuts)), UNITS]
    return draw(st.permutations([high - low for low, high in pairwise(edges)]))


masses = st.one_of(
    st.integers(0, UNITS).map(lambda units: units / UNITS),
    st.integers(1, UNITS - 1).map(lambda units: math.nextafter(units / UNITS, 0)),
    st.integers(1, UNITS - 1).map(lambda units: math.nextafter(units / UNITS, 1)),
    st.floats(0, 1),
)


@settings(max_examples=25)
@example([64, 64, 64, 64], 0.75)
@example([64, 64, 64, 64], math.nextafter(0.75, 1))
@given(rows(), masses)
def test_ties_are_exact(row: list[int], mass: float) -> None:
    sums = list(accumulate(sorted((Fraction(units, UNITS) for units in row), reverse=True)))
    needed = next((k for k, held in enumerate(sums, 1) if held >= Fraction(mass)), len(row))
    some = [1, (len(row) + 1) // 2]
    sizes, lost = working_sets(torch.tensor(row) / UNITS, mass, some)
    assert sizes.item() == needed
    assert lost.tolist() == [float(1 - sums[capacity - 1]) for capacity in some]


def test_order_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any order of the keys, and any cut of a row into blocks, gives the same bits."""
    attention = (4 * torch.randn(3, 300, generator=torch.Generator().manual_seed(1))).softmax(-1)
    together = working_sets(attention, 0.9, [20, 150])
    monkeypatch.setattr(working_set, "_KEYS", 64)
    shuffled = attention[:, torch.randperm(300, generator=torch.Generator().manual_seed(2))]
    for one, other in zip(together, working_sets(shuffled, 0.9, [20, 150]), strict=True):
        assert torch.equal(one, other)


def test_smallest_weights() -> None:
    """Weights below 2**-52, denormals among them, weigh nothing; all keys are wanted in the end."""
    attention = torch.tensor([[0.5, 2.0**-30, 2.0**-60, 1e-40, 0.0, 0.25]])
    sizes, lost = working_sets(attention, 0.9, [3, 6])
    assert sizes.tolist() == [6]
    assert lost.tolist() == [[0.25 - 2.0**-30] * 2]


def test_rows_that_are_not_finite() -> None:
    attention = torch.full((3, 5), 0.2)
    attention[0, 2] = torch.nan
    attention[1] = -attention[0, 2].abs()  # a NaN with its sign bit set
    sizes, lost = working_sets(attention, 0.5, [1, 4])
    expected_sizes, expected_lost = reference(attention, 0.5, [1, 4])
    assert torch.equal(sizes, expected_sizes)
    torch.testing.assert_close(lost, expected_lost, rtol=0, atol=1e-12, equal_nan=True)


def test_no_rows_and_no_capacities() -> None:
    sizes, lost = working_sets(torch.ones(0, 4), 0.9, [2])
    assert sizes.shape == (0,) and lost.shape == (0, 1)
    sizes, lost = working_sets(torch.full((2, 4), 0.25), 0.7, [])
    assert sizes.tolist() == [3, 3] and lost.shape == (2, 0)


@pytest.mark.parametrize(
    ("attention", "mass", "capacities", "message"),
    [
        (torch.ones(2, 4).half(), 0.9, [1], "attention is torch.float16"),
        (torch.ones(4, 2).t(), 0.9, [1], r"strides \(1, 2\); it must be torch.float32 and contig"),
        (torch.ones(2, 4), 1.5, [1], "mass is 1.5; it must be from 0 to 1"),
        (torch.ones(2, 4), 0.9, [5], "a capacity is 5; it must be from 1 to the 4 keys"),
        (torch.ones(2, 4), 0.9, [0], "a capacity is 0; it must be from 1 to the 4 keys"),
    ],
)
def test_bad_arguments_are_refused(
    attention: torch.Tensor, mass: float, capacities: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        working_sets(attention, mass, capacities)

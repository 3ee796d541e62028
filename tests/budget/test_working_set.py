"""Working sets and Theorem 3.1 against brute force in exact rationals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, combinations, pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from growpage.budget.working_set import (
    kept_mass,
    sufficient_capacity,
    working_set_size,
    worst_case_error,
)

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64])
UNITS = 256  # weights are whole multiples of 1/256, which even bfloat16 holds exactly


@st.composite
def rows(draw: st.DrawFn, most: int = 12) -> list[int]:
    """Weights of one row in units, in any order: they sum to 1, many are zero or tied."""
    grain = draw(st.sampled_from([1, 8, 64]))
    cuts = draw(st.lists(st.integers(0, UNITS // grain), max_size=most - 1))
    edges = [0, *(grain * cut for cut in sorted(cuts)), UNITS]
    return draw(st.permutations([high - low for low, high in pairwise(edges)]))


# On a prefix sum, just beside one, anywhere, and at both ends.
masses = st.one_of(
    st.integers(0, UNITS).map(lambda units: units / UNITS),
    st.integers(1, UNITS - 1).map(lambda units: math.nextafter(units / UNITS, 0)),
    st.integers(1, UNITS - 1).map(lambda units: math.nextafter(units / UNITS, 1)),
    st.floats(0, 1),
    st.sampled_from([5e-324, math.nextafter(1, 0), 1.0]),
)


def tensor(row: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.tensor(row, dtype=torch.float64) / UNITS).to(dtype)


def subsets(keys: int) -> Iterator[tuple[int, ...]]:
    """Every non-empty set of keys, smaller ones first."""
    return (chosen for size in range(1, keys + 1) for chosen in combinations(range(keys), size))


def smallest_prefix(weights: list[Fraction], mass: float) -> int:
    """``D_p`` by trying every size over the sorted weights."""
    sums = accumulate(sorted(weights, reverse=True))
    return next((k for k, held in enumerate(sums, 1) if held >= Fraction(mass)), len(weights))


@given(rows(), masses, DTYPES)
def test_size_is_the_first_prefix_that_holds_the_mass(
    row: list[int], mass: float, dtype: torch.dtype
) -> None:
    expected = smallest_prefix([Fraction(units, UNITS) for units in row], mass)
    assert working_set_size(tensor(row, dtype), mass).item() == expected


@given(rows(most=8), masses)
def test_no_other_set_of_keys_is_smaller(row: list[int], mass: float) -> None:
    needed = Fraction(mass) * UNITS
    best = next(len(s) for s in subsets(len(row)) if sum(row[key] for key in s) >= needed)
    assert working_set_size(tensor(row), mass).item() == best


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mass", [5e-324, 0.1, 0.9, 0.99, 1.0])
def test_size_of_real_softmax_rows(dtype: torch.dtype, mass: float) -> None:
    logits = 4 * torch.randn(2, 3, 700, generator=torch.Generator().manual_seed(0))
    attention = logits.softmax(-1).to(dtype)
    sizes = working_set_size(attention, mass)
    assert sizes.shape == (2, 3) and not sizes.is_floating_point()
    for row, size in zip(attention.flatten(0, 1), sizes.flatten(), strict=True):
        assert size == smallest_prefix([Fraction(weight) for weight in row.tolist()], mass)


@pytest.mark.parametrize("mass", [0.3, 0.9, 0.999])
def test_long_rows_do_not_drift(mass: float) -> None:
    row = torch.full((100_000,), 1e-5)
    assert working_set_size(row, mass) == math.ceil(Fraction(mass) / Fraction(row[0].item()))


def test_size_at_the_edges() -> None:
    assert working_set_size(torch.ones(1), 0.9) == 1
    assert working_set_size(torch.ones(1), 1.0) == 1
    assert working_set_size(tensor([128, 0, 128, 0]), 1.0) == 2, "zeros are never needed"
    assert working_set_size(tensor([64, 64, 64, 64]), 0.0) == 1
    assert working_set_size(tensor([64, 0, 32]), 0.9) == 3, "a row that falls short needs all keys"


@given(rows(), masses, masses)
def test_size_grows_with_the_mass(row: list[int], first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert working_set_size(tensor(row), low) <= working_set_size(tensor(row), high)


@given(rows(most=8), st.integers(0, UNITS + 40), st.sampled_from([0.25, 1.0, 8.0]))
def test_theorem_3_1(row: list[int], units: int, v_max: float) -> None:
    """The capacity is that of the smallest set whose worst-case error is within delta."""
    attention, delta = tensor(row), 2 * v_max * units / UNITS
    within = (
        len(chosen)
        for chosen in subsets(len(row))
        if worst_case_error(attention, torch.tensor(chosen), v_max) <= delta
    )
    assert sufficient_capacity(attention, delta, v_max).item() == next(within)


@given(st.integers(0, 2**32), st.floats(1e-3, 3), st.floats(0.1, 10))
def test_capacity_suffices_and_one_key_less_does_not(seed: int, delta: float, v_max: float) -> None:
    attention = torch.randn(50, generator=torch.Generator().manual_seed(seed)).mul(3).softmax(-1)
    capacity = int(sufficient_capacity(attention, delta, v_max))
    ranked = attention.argsort(descending=True)
    assert worst_case_error(attention, ranked[:capacity], v_max) <= delta + 1e-12
    if capacity > 1:
        assert worst_case_error(attention, ranked[: capacity - 1], v_max) > delta - 1e-12


@given(st.integers(0, 2**32), st.integers(1, 24), st.integers(1, 6), st.floats(0, 6))
def test_bound_holds_for_real_outputs(seed: int, keys: int, dim: int, sharpness: float) -> None:
    generator, v_max = torch.Generator().manual_seed(seed), 2.5
    attention = (sharpness * torch.randn(keys, generator=generator).double()).softmax(-1)
    values = torch.randn(keys, dim, generator=generator).double()
    radius = torch.rand(keys, 1, generator=generator).double().mul_(2).clamp_(max=1)
    values *= v_max * radius / values.norm(dim=-1, keepdim=True)
    kept = torch.randperm(keys, generator=generator)[: 1 + seed % keys]
    mass = attention[kept].sum()
    assume(mass > 1e-12)
    error = (attention @ values - attention[kept] @ values[kept] / mass).norm()
    assert error <= worst_case_error(attention, kept, v_max) + 1e-9


def test_bound_is_attained() -> None:
    """Kept values all on one side, lost ones on the other."""
    attention, kept = tensor([100, 60, 50, 46]), torch.tensor([0, 2])
    values = torch.full((4,), -3.0)
    values[kept] = 3.0
    error = (attention @ values - 3.0).abs()
    torch.testing.assert_close(error.double(), worst_case_error(attention, kept, 3.0))


@pytest.mark.parametrize(
    ("attention_rows", "kept_rows"), [((2, 3), (2, 3)), ((2, 3), ()), ((), (4,)), ((2, 1), (3,))]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mass_and_error_by_hand(
    attention_rows: tuple[int, ...], kept_rows: tuple[int, ...], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    attention = torch.randn(*attention_rows, 20, generator=generator).softmax(-1).to(dtype)
    kept = torch.rand(*kept_rows, 20, generator=generator).argsort(-1)[..., :7]
    mass = kept_mass(attention, kept)
    error = worst_case_error(attention, kept, 1.5)
    shape = torch.broadcast_shapes(attention_rows, kept_rows)
    assert mass.shape == error.shape == shape
    wide, chosen = attention.expand(*shape, 20), kept.expand(*shape, 7)
    for where in torch.cartesian_prod(*map(torch.arange, shape)).view(-1, len(shape)).tolist():
        row, keys = wide[tuple(where)].tolist(), chosen[tuple(where)].tolist()
        direct = math.fsum(row[key] for key in keys)
        assert mass[tuple(where)].item() == pytest.approx(direct, abs=1e-12)
        bound = 2 * 1.5 * max(0.0, 1 - direct)
        assert error[tuple(where)].item() == pytest.approx(bound, abs=1e-12)


def test_keeping_everything_is_free() -> None:
    attention = torch.full((3,), 0.34)  # sums to more than one, as rounding may have it
    assert worst_case_error(attention, torch.arange(3), 5.0) == 0

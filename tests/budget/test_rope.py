"""Rotation against complex multiplication, and undone."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from growpage.budget.rope import Rotary

DIM, POSITIONS = 16, 500
# neox pairing, rotated part of the head, scale of the table (as YaRN's mscale)
KINDS = list(product([True, False], [DIM, 8, 2], [1.0, 1.3]))
kinds = pytest.mark.parametrize(("neox", "rotary_dim", "scale"), KINDS)


def angles(rotary_dim: int) -> Tensor:
    frequencies = 100.0 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    return torch.arange(POSITIONS, dtype=torch.float64).outer(frequencies)


def rotary(neox: bool, rotary_dim: int, scale: float, dtype: torch.dtype = torch.float32) -> Rotary:
    angle = angles(rotary_dim)
    return Rotary((scale * torch.cat((angle.cos(), angle.sin()), -1)).to(dtype), neox)


def by_complex(x: Tensor, angle: Tensor, neox: bool, scale: float) -> Tensor:
    """Rotate one vector in double by one row of angles."""
    half = len(angle)
    out = x.double().clone()
    for pair in range(half):
        first, second = (pair, pair + half) if neox else (2 * pair, 2 * pair + 1)
        turned = torch.complex(out[first], out[second]) * torch.polar(
            torch.tensor(scale, dtype=torch.float64), angle[pair]
        )
        out[first], out[second] = turned.real, turned.imag
    return out


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(seed))


@kinds
def test_rotate_is_complex_multiplication(neox: bool, rotary_dim: int, scale: float) -> None:
    x, positions = vectors(4, 3), torch.tensor([0, 1, 77, POSITIONS - 1])
    turned = rotary(neox, rotary_dim, scale).rotate(x, positions.view(-1, 1))
    for n, head in product(range(4), range(3)):
        expected = by_complex(x[n, head], angles(rotary_dim)[positions[n]], neox, scale)
        torch.testing.assert_close(turned[n, head], expected.float(), rtol=1e-5, atol=1e-5)


@kinds
@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16])
def test_unrotate_undoes_rotate(
    neox: bool, rotary_dim: int, scale: float, table: torch.dtype
) -> None:
    rope = rotary(neox, rotary_dim, scale, table)
    x, positions = vectors(50, 2, 3), torch.arange(0, POSITIONS, 10).view(-1, 1, 1)
    there = rope.rotate(x, positions)
    assert not torch.allclose(there, x, atol=0.1)
    torch.testing.assert_close(rope.unrotate(there, positions), x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rope.rotate(rope.unrotate(x, positions), positions), x)


@kinds
def test_dot_products_depend_on_the_distance_only(
    neox: bool, rotary_dim: int, scale: float
) -> None:
    rope, shift = rotary(neox, rotary_dim, scale), torch.arange(0, 400, 7)
    query, key = (vectors(1, seed=seed).expand(len(shift), -1) for seed in (0, 1))
    dots = (rope.rotate(query, shift + 63) * rope.rotate(key, shift + 20)).sum(-1)
    torch.testing.assert_close(dots, dots[:1].expand_as(dots), rtol=1e-4, atol=1e-4)
    other = (rope.rotate(query, shift + 64) * rope.rotate(key, shift + 20)).sum(-1)
    assert (other - dots).abs().max() > 1e-3


def test_one_position_for_a_whole_tensor_and_half_precision() -> None:
    rope, x = rotary(True, 8, 1.0), vectors(2, 3, 4).bfloat16()
    turned = rope.rotate(x, torch.tensor([123]))
    assert turned.shape == x.shape and turned.dtype == torch.float32
    assert torch.equal(turned[..., 8:], x[..., 8:].float()), "the rest of a head is not rotated"
    assert torch.equal(turned, rope.rotate(x, torch.full((2, 3, 4), 123)))

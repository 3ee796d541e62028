"""The proof of a rotary table: everything that would make rotated-back queries wrong is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from growpage.budget.rope import Rotary
from growpage.engine.checks import UnsupportedError
from growpage.engine.rotation import find_rotary, prove_rotary

POSITIONS = 512
QUERY = torch.randn(3, 4, 64, generator=torch.Generator().manual_seed(0))


def table(base: float = 10000.0, dim: int = 64, positions: int = POSITIONS) -> Tensor:
    angles = torch.outer(torch.arange(positions), base ** -(torch.arange(0, dim, 2) / dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def rotated(rotary: Rotary, position: int) -> Tensor:
    return rotary.rotate(QUERY, torch.tensor([position]))


def one_layer_without(position: int) -> Tensor:
    query = rotated(Rotary(table()), position)
    query[1] = QUERY[1]
    return query


def scaled_by_position(position: int) -> Tensor:
    return rotated(Rotary(table()), position) * (1.1 if position > 300 else 1.0)


def nan_at_the_end(position: int) -> Tensor:
    return rotated(Rotary(table()), position) * (float("nan") if position > 300 else 1.0)


class RemembersTheLongest:
    """A rotation that changes for good when a long sequence has been seen."""

    longest = 0

    def __call__(self, position: int) -> Tensor:
        self.longest = max(self.longest, position)
        return rotated(Rotary(table(base=10000.0 if self.longest < 300 else 20000.0)), position)


@pytest.mark.parametrize("dim", [64, 32])
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("scale", [1.0, 1.4])
def test_a_right_table_passes(dim: int, neox: bool, scale: float) -> None:
    rotary = Rotary(scale * table(dim=dim), neox=neox)
    prove_rotary(rotary, lambda position: rotated(rotary, position), POSITIONS, 1e-4)


@pytest.mark.parametrize(
    "queries_at",
    [
        lambda position: QUERY,
        one_layer_without,
        lambda position: rotated(Rotary(table(), neox=False), position),
        lambda position: rotated(Rotary(table(dim=32)), position),
        lambda position: rotated(Rotary(table(base=10100.0)), position),
        scaled_by_position,
        nan_at_the_end,
        RemembersTheLongest(),
    ],
    ids=["none", "one layer", "pairs", "partial", "base", "scale", "nan", "history"],
)
def test_a_wrong_table_is_refused(queries_at: Callable[[int], Tensor]) -> None:
    with pytest.raises(UnsupportedError, match="does not rotate its queries as its rotary table"):
        prove_rotary(Rotary(table()), queries_at, POSITIONS, 0.03)


def test_a_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="ends at position 512, before --max-model-len 600"):
        prove_rotary(Rotary(table()), lambda position: QUERY, 600, 0.03)


class Embedding(nn.Module):
    def __init__(self, base: float, is_neox_style: bool = True) -> None:
        super().__init__()
        self.register_buffer("cos_sin_cache", table(base))
        self.is_neox_style = is_neox_style


class SelfAttention(nn.Module):
    def __init__(self, rotary: nn.Module | None) -> None:
        super().__init__()
        self.rotary_emb = rotary


LAYERS = ("0.attn", "1.attn")


def model(*rotary: nn.Module | None) -> nn.Module:
    return nn.ModuleList(SelfAttention(module) for module in rotary)


def test_equal_tables_are_one_rotation() -> None:
    rotary = find_rotary(model(Embedding(1e4, False), Embedding(1e4, False)), LAYERS)
    assert torch.equal(rotary.cos_sin, table())
    assert not rotary.neox


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (Embedding(1e6), "layer 1.attn rotates its queries otherwise than the first, so"),
        (Embedding(1e4, False), "layer 1.attn rotates its queries otherwise than the first, so"),
        (None, "layer 1.attn has no rotary embedding of its own"),
        (nn.Linear(2, 2), "layer 1.attn has Linear, so growpage cannot tell"),
    ],
    ids=["local and global", "pairs", "no rotation", "unknown"],
)
def test_layers_that_differ_are_refused(second: nn.Module | None, message: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{message}.*--growpage-policy fixed"):
        find_rotary(model(Embedding(1e4), second), LAYERS)

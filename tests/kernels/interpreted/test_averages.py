"""Both averages in one pass, against rotating back and blending in torch."""

from __future__ import annotations

import pytest
import torch

from growpage.budget.rope import Rotary
from growpage.kernels.averages import update_averages
from growpage.kernels.reference import update_averages as reference

SLOTS, LAYERS, PLACES = 5, 2, 20
BETAS = (0.9, 0.999)


def table(rotary_dim: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    steps = torch.arange(rotary_dim // 2) / max(rotary_dim // 2, 1)
    angles = torch.arange(600.0)[:, None] * 1e4**-steps
    return (scale * torch.cat((angles.cos(), angles.sin()), dim=-1)).to(dtype)


@pytest.mark.parametrize("neox", [True, False], ids=["neox", "interleaved"])
@pytest.mark.parametrize(
    ("heads", "dim", "rotary_dim", "dtype"),
    [
        (9, 64, 64, torch.float32),
        (12, 128, 128, torch.bfloat16),
        (3, 80, 32, torch.float16),
        (1, 6, 6, torch.float32),
        (2, 8, 0, torch.bfloat16),
    ],
)
def test_averages(neox: bool, heads: int, dim: int, rotary_dim: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(heads)
    average = torch.randn(SLOTS, 2, LAYERS, heads, dim, generator=generator)
    queries = torch.randn(LAYERS, PLACES, heads, dim, generator=generator).to(dtype)
    rows, slots = torch.tensor([17, 0, 5]), torch.tensor([4, 0, 2])
    positions = torch.tensor([599, 0, 77])
    rotary = Rotary(table(rotary_dim, scale=1.5), neox=neox)
    expected = reference(average, queries, rows, slots, positions, rotary, BETAS)
    before = average.clone()
    update_averages(average, queries, rows, slots, positions, rotary, BETAS)
    # Elements of a head mix, so what rounding costs is measured by the head's largest.
    most = torch.maximum(before.abs(), queries[:, 0].abs().amax()).amax(dim=-1, keepdim=True)
    assert ((average - expected).abs() <= 1e-6 * most).all()
    assert torch.equal(average[[1, 3]], before[[1, 3]])  # other slots


@pytest.mark.parametrize("betas", [(0.0, 0.5), (0.25, 1.0)])
def test_any_decay(betas: tuple[float, float]) -> None:
    average, queries = torch.randn(2, 2, 1, 2, 4), torch.randn(1, 2, 2, 4)
    one = torch.tensor([1])
    rotary = Rotary(table(4, dtype=torch.bfloat16))
    expected = reference(average, queries, one, one, one, rotary, betas)
    update_averages(average, queries, one, one, one, rotary, betas)
    torch.testing.assert_close(average, expected, rtol=1e-6, atol=1e-6)


def test_queries_are_read_from_any_memory() -> None:
    """As a slice of a batch, whose rows and heads are not dense."""
    memory = torch.randn(LAYERS, PLACES, 6, 16)
    average = torch.zeros(SLOTS, 2, LAYERS, 2, 8)
    arguments = (torch.tensor([3, 9]), torch.tensor([1, 0]), torch.tensor([7, 8]), Rotary(table(8)))
    queries = memory[:, :, ::3, 4:12]
    expected = reference(average, queries, *arguments, BETAS)
    update_averages(average, queries, *arguments, BETAS)
    torch.testing.assert_close(average, expected, rtol=1e-6, atol=1e-6)


def test_a_step_without_decodes_changes_nothing() -> None:
    average, none = torch.ones(1, 2, 1, 1, 4), torch.tensor([], dtype=torch.long)
    update_averages(average, torch.ones(1, 1, 1, 4), none, none, none, Rotary(table(4)), BETAS)
    assert torch.equal(average, torch.ones_like(average))


def test_bad_tensors_are_refused() -> None:
    one, queries = torch.tensor([0]), torch.ones(1, 1, 1, 4)
    for average, rotary_dim, message in (
        (torch.ones(1, 2, 1, 1, 6), 4, r"need \[slots, 2, 1, 1, 4\] of torch.float32"),
        (torch.ones(1, 2, 1, 1, 4).half(), 4, r"need \[slots, 2, 1, 1, 4\] of torch.float32"),
        (torch.ones(1, 2, 1, 1, 4), 6, "rotation has 6 dimensions, and a head has 4"),
    ):
        with pytest.raises(ValueError, match=message):
            update_averages(average, queries, one, one, one, Rotary(table(rotary_dim)), BETAS)
    with pytest.raises(ValueError, match="queries' last axis has stride 2; it must be 1"):
        update_averages(
            torch.ones(1, 2, 1, 1, 2), queries[..., ::2], one, one, one, Rotary(table(2)), BETAS
        )

"""Compaction in place against a copy made first, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from growpage.kernels.compaction import compact, overwritten_early
from growpage.kernels.reference import compact as reference
from tests.kernels.interpreted.caches import LAYOUTS, bits, laid_out, noise

LAYERS, POOL, HEADS, PAGE, DIM = 2, 6, 2, 32, 8
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint8]


@st.composite
def moves(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Source pages, target pages that overlap them or not in any order, and survivors."""
    pages = st.permutations(range(POOL))
    source = draw(pages)[: draw(st.integers(1, POOL))]
    target = draw(pages)[: draw(st.integers(1, len(source)))]
    return source, target, draw(st.integers(0, len(target) * PAGE))


def survivors(source: list[int], count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rank = torch.rand(LAYERS, HEADS, len(source) * PAGE, generator=generator).argsort(-1)
    return rank[..., :count].sort(-1).values


@settings(max_examples=60)
@example(([0, 1, 2, 3], [0, 1, 2], 96), torch.bfloat16, "LBNHC")  # all in place
@example(([0, 1, 2, 3], [2, 3], 64), torch.float32, "LBHNC")  # overwritten before they are read
@example(([3, 2, 1, 0], [0, 1, 2, 3], 128), torch.float16, "BLNHC")
@given(moves(), st.sampled_from(DTYPES), st.sampled_from(list(LAYOUTS)))
def test_in_place_equals_a_copy(
    move: tuple[list[int], list[int], int], dtype: torch.dtype, layout: str
) -> None:
    source, target, count = move
    cache = laid_out(noise(LAYERS, POOL, HEADS, PAGE, 2 * DIM, dtype=dtype), layout)
    kept = survivors(source, count)
    expected = reference(cache, kept, source, target)
    compact(cache, kept, source, target)
    assert torch.equal(bits(cache), bits(expected))  # pages that are no target included


@pytest.mark.parametrize("dim", [5, 48])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16], ids=str)
def test_any_head_size_and_place_in_memory(dim: int, dtype: torch.dtype) -> None:
    """Words are as narrow as the memory's alignment asks for, and no neighbour is touched."""
    memory = noise(LAYERS * POOL * HEADS * PAGE * 2 * dim + 3, dtype=dtype)
    before = memory.clone()
    cache = memory[1:-2].view(LAYERS, POOL, HEADS, PAGE, 2 * dim)
    kept = survivors([4, 2, 0], 50)
    expected = reference(cache, kept, [4, 2, 0], [2, 1])
    compact(cache, kept, [4, 2, 0], [2, 1])
    assert torch.equal(bits(cache), bits(expected))
    for edge in (slice(0, 1), slice(-2, None)):
        assert torch.equal(bits(memory[edge]), bits(before[edge]))


def test_pages_are_staged_only_if_they_come_earlier() -> None:
    assert overwritten_early([0, 1, 2, 3], [0, 1, 2]) == []
    assert overwritten_early([0, 1, 2, 3], [5, 0, 1]) == []
    assert overwritten_early([0, 1, 2, 3], [2, 3, 0]) == [2, 3]


@pytest.mark.parametrize(
    ("source", "target", "count", "message"),
    [
        ([0, 0], [1], 3, r"source names a page twice: \[0, 0\]"),
        ([0, 1], [1, 1], 3, r"target names a page twice: \[1, 1\]"),
        ([0, 1], [2], 33, "1 target pages of 32 tokens have no room for 33 survivors"),
    ],
)
def test_bad_tables_are_refused(
    source: list[int], target: list[int], count: int, message: str
) -> None:
    cache = noise(LAYERS, POOL, HEADS, PAGE, 2 * DIM, dtype=torch.float32)
    before = cache.clone()
    with pytest.raises(ValueError, match=message):
        compact(cache, survivors(source, count), source, target)
    assert torch.equal(bits(cache), bits(before))


def test_bad_tensors_are_refused() -> None:
    cache = noise(LAYERS, POOL, HEADS, PAGE, 2 * DIM, dtype=torch.float32)
    kept = survivors([0, 1], 10)
    with pytest.raises(ValueError, match=r"needs \[2, 2, n\] of torch.int64"):
        compact(cache, kept.int(), [0, 1], [2])
    with pytest.raises(ValueError, match="not contiguous"):
        compact(cache, kept[..., ::2], [0, 1], [2])
    with pytest.raises(ValueError, match="last axis has stride 16"):
        compact(cache.transpose(3, 4), kept, [0, 1], [2])

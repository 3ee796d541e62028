"""Compiled reads and moves against torch's, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from growpage.kvcache.layout import LAYOUTS
from growpage.kvcache.packed import PackedPages, in_order
from growpage.kvcache.paged import PagedCache, keep_survivors

LAYERS, POOL, HEADS, DIM = 3, 6, 2, 32
ALL = slice(0, LAYERS)
DTYPES = [torch.bfloat16, torch.float16]


def cache_of(seed: int, page: int, dtype: torch.dtype = torch.bfloat16) -> PagedCache:
    """Any bit patterns, between other memory, as the engine's pages are."""
    generator = torch.Generator().manual_seed(seed)
    shape = (LAYERS, POOL + 1, HEADS, 2, page * DIM)
    memory = torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, generator=generator)
    return PagedCache(memory.view(dtype)[:, 1:], LAYOUTS["amx"], DIM)


def bits(numbers: Tensor) -> Tensor:
    return numbers.contiguous().view(torch.int32)


@settings(max_examples=40)
@given(
    st.permutations(range(POOL)),
    st.integers(1, POOL),
    st.sampled_from([16, 32, 48]),
    st.sampled_from([slice(0, 1), slice(1, 3), ALL]),
    st.integers(0, 99),
)
def test_numbers_read_are_those_of_torch(
    order: list[int], count: int, page: int, layers: slice, seed: int
) -> None:
    cache, table = cache_of(seed, page), torch.tensor(order[:count])
    for fast, plain in (
        (cache.float_keys, cache.keys),
        (cache.float_values, cache.values),
    ):
        found, expected = fast(layers, table), plain(layers, table).float()
        assert found.shape == expected.shape
        # A signalling NaN is made quiet by torch's conversion, and only by that.
        same = (bits(found) == bits(expected)) | (found.isnan() & expected.isnan())
        assert same.all()


@st.composite
def moves(draw: st.DrawFn) -> tuple[list[int], list[int], int, int]:
    """Source pages, target pages in an order that allows moving in place, survivors, a seed."""
    pages = draw(st.permutations(range(POOL)))
    source = pages[: draw(st.integers(1, POOL))]
    target: list[int] = []
    for index in range(draw(st.integers(1, len(source)))):
        free = [p for p in pages if p not in target and p not in source[index + 1 :]]
        target.append(draw(st.sampled_from(free)))
    return source, target, draw(st.integers(0, 40)), draw(st.integers(0, 99))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=60)
@given(moves(), st.sampled_from([16, 32]))
def test_pages_are_moved_as_by_torch(
    dtype: torch.dtype, move: tuple[list[int], list[int], int, int], page: int
) -> None:
    source, target, left, seed = move
    assert in_order(source, target)
    count = max(len(target) * page - left % page, 1)
    generator = torch.Generator().manual_seed(seed)
    rank = torch.rand(LAYERS, HEADS, len(source) * page, generator=generator).argsort(-1)
    rank[0] = torch.arange(rank.shape[-1])  # one layer in which nothing but its page changes
    survivors = rank[..., :count].sort(-1).values
    fast, plain = cache_of(seed, page, dtype), cache_of(seed, page, dtype)
    tables = torch.tensor(source), torch.tensor(target)
    fast.compact(*tables, survivors)
    keys, values = plain.stored_keys(ALL, tables[0]), plain.stored_values(ALL, tables[0])
    keep_survivors(plain, ALL, tables[1], keys, values, survivors)
    for read in ("stored_keys", "stored_values"):
        found, expected = (
            getattr(cache, read)(ALL, tables[1])[:, :, :count].contiguous().view(torch.int16)
            for cache in (fast, plain)
        )
        assert torch.equal(found, expected)
    others = [number for number in range(POOL) if number not in target]
    untouched = cache_of(seed, page, dtype).pages
    for number in others:
        assert torch.equal(
            fast.pages[:, number].view(torch.int16), untouched[:, number].view(torch.int16)
        )


def test_a_target_that_comes_too_early_is_not_moved_in_place() -> None:
    assert in_order([4, 1, 2], [4, 1]) and in_order([4, 1, 2], [9, 4, 1])
    assert not in_order([4, 1, 2], [1]) and not in_order([4, 1], [1, 4])
    cache = cache_of(0, 32)
    source = torch.tensor([4, 1])
    before = cache.stored_keys(ALL, source)
    survivors = torch.arange(32, 64).expand(LAYERS, HEADS, 32)
    cache.compact(torch.tensor([1, 4]), torch.tensor([4]), survivors)
    after = cache.stored_keys(ALL, torch.tensor([4]))
    assert torch.equal(after.view(torch.int16), before[:, :, :32].view(torch.int16))


@pytest.mark.parametrize(
    ("layout", "dtype", "dim"),
    [("vec", torch.bfloat16, 32), ("amx", torch.float32, 32), ("amx", torch.bfloat16, 24)],
)
def test_other_pages_are_left_to_torch(layout: str, dtype: torch.dtype, dim: int) -> None:
    pages = torch.zeros(1, 2, 1, 2, 32 * dim, dtype=dtype)
    assert not PackedPages.fits(pages, LAYOUTS[layout], dim)

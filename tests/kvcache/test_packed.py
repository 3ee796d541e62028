"""Compiled reads and moves against torch's, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from growpage.kvcache.eight_bit import EightBitFloats
from growpage.kvcache.layout import LAYOUTS
from growpage.kvcache.packed import PackedPages
from growpage.kvcache.paged import PagedCache, keep_survivors
from tests.kvcache.loops import amx, needs_compiler, needs_tiles

pytestmark = needs_compiler

LAYERS, POOL, HEADS, DIM = 3, 6, 2, 32
ALL = slice(0, LAYERS)
DTYPES = [torch.bfloat16, torch.float16, torch.uint8]


def cache_of(
    seed: int, page: int, dtype: torch.dtype = torch.bfloat16, layout: str = "amx"
) -> PagedCache:
    """Any bit patterns, between other memory, as the engine's pages are."""
    generator = torch.Generator().manual_seed(seed)
    shape = (LAYERS, POOL + 1, HEADS, 2, page * DIM)
    memory = torch.randint(256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    codes = EightBitFloats(torch.float8_e4m3fn, [1.0, 0.5, 3.0], [0.25, 7.0, 1.0])
    return PagedCache(
        memory.flatten(-2).view(dtype)[:, 1:],
        LAYOUTS[layout],
        DIM,
        codes if dtype is torch.uint8 else None,
    )


def bits(numbers: Tensor) -> Tensor:
    return numbers.contiguous().view(torch.int32)


@needs_tiles
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8], ids=str)
@settings(max_examples=40)
@given(
    st.permutations(range(POOL)),
    st.integers(1, POOL),
    st.sampled_from([16, 32, 48]),
    st.sampled_from([slice(0, 1), slice(1, 3), ALL]),
    st.integers(0, 99),
)
def test_numbers_read_are_those_of_torch(
    dtype: torch.dtype, order: list[int], count: int, page: int, layers: slice, seed: int
) -> None:
    cache, table = cache_of(seed, page, dtype), torch.tensor(order[:count])
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
    """Source pages, target pages, survivors, a seed."""
    pages = st.permutations(range(POOL))
    source = draw(pages)[: draw(st.integers(1, POOL))]
    # Often the source itself, or a part of it, as where nothing is shared.
    part = sorted(draw(st.sets(st.sampled_from(source), min_size=1)), key=source.index)
    target = draw(st.sampled_from([part, draw(pages)[: len(source)]]))
    return source, target, draw(st.integers(0, 40)), draw(st.integers(0, 99))


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        *((layout, dtype) for layout in ("vec", "vec16") for dtype in (*DTYPES, torch.float32)),
        *(pytest.param("amx", dtype, marks=needs_tiles) for dtype in DTYPES),
    ],
    ids=str,
)
@settings(max_examples=60)
@given(moves(), st.sampled_from([16, 32]))
def test_pages_are_moved_as_by_torch(
    layout: str, dtype: torch.dtype, move: tuple[list[int], list[int], int, int], page: int
) -> None:
    source, target, left, seed = move
    count = max(len(target) * page - left % page, 1)
    generator = torch.Generator().manual_seed(seed)
    rank = torch.rand(LAYERS, HEADS, len(source) * page, generator=generator).argsort(-1)
    rank[0] = torch.arange(rank.shape[-1])  # one layer in which nothing but its page changes
    survivors = rank[..., :count].sort(-1).values
    fast, plain = (cache_of(seed, page, dtype, layout) for _ in range(2))
    assert fast._packed is not None
    tables = torch.tensor(source), torch.tensor(target)
    fast.compact(*tables, survivors)
    keys, values = plain.stored_keys(ALL, tables[0]), plain.stored_values(ALL, tables[0])
    keep_survivors(plain, ALL, tables[1], keys, values, survivors)
    for read in ("stored_keys", "stored_values"):
        found, expected = (
            getattr(cache, read)(ALL, tables[1])[:, :, :count].contiguous().view(torch.int8)
            for cache in (fast, plain)
        )
        assert torch.equal(found, expected)
    others = [number for number in range(POOL) if number not in target]
    untouched = cache_of(seed, page, dtype, layout).pages
    for number in others:
        assert torch.equal(
            fast.pages[:, number].view(torch.int8), untouched[:, number].view(torch.int8)
        )


@pytest.mark.parametrize("layout", ["vec", amx])
def test_a_page_that_comes_earlier_in_the_target_is_read_before_it_is_written(layout: str) -> None:
    cache = cache_of(0, 32, layout=layout)
    source = torch.tensor([4, 1, 2])
    before = cache.stored_keys(ALL, source), cache.stored_values(ALL, source)
    survivors = torch.arange(1, 65).expand(LAYERS, HEADS, 64)
    target = torch.tensor([2, 4])
    cache.compact(source, target, survivors)
    after = cache.stored_keys(ALL, target), cache.stored_values(ALL, target)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new.view(torch.int16), old[:, :, 1:65].contiguous().view(torch.int16))


@pytest.mark.parametrize(
    ("layout", "dtype", "dim"),
    [
        ("amx", torch.float32, 32),
        ("amx", torch.bfloat16, 24),
        ("vec", torch.bfloat16, 24),
        ("vec16", torch.float64, 32),
    ],
)
def test_other_pages_are_left_to_torch(layout: str, dtype: torch.dtype, dim: int) -> None:
    pages = torch.zeros(1, 2, 1, 2, 32 * dim, dtype=dtype)
    assert not PackedPages.fits(pages, LAYOUTS[layout], dim)

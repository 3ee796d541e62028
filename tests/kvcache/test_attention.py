"""Attention looked at where pages lie, against the torch code for any layout and device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from growpage.budget.demand import demand_by_head
from growpage.budget.scores import CacheView, window
from growpage.compiled import loops
from growpage.kvcache.layout import LAYOUTS
from growpage.kvcache.packed import PackedPages
from growpage.kvcache.paged import PagedCache

compiled = loops()
pytestmark = pytest.mark.skipif(
    compiled is None or not compiled.attend, reason="this processor has no matrix unit"
)

LAYERS, POOL, HEADS = 3, 7, 2


def cache_of(page: int, dim: int, sharpness: float, seed: int) -> tuple[PagedCache, PackedPages]:
    """Random numbers, between other memory that is no number."""
    generator = torch.Generator().manual_seed(seed)
    shape = (LAYERS, POOL, HEADS, 2, page * dim)
    memory = torch.full((LAYERS, POOL + 1, HEADS, 2, page * dim), torch.nan, dtype=torch.bfloat16)
    memory[:, 1:] = torch.randn(shape, generator=generator) * sharpness
    cache = PagedCache(memory[:, 1:], LAYOUTS["amx"], dim)
    assert cache._packed is not None
    return cache, cache._packed


places = st.permutations(range(POOL))
sizes = st.tuples(st.integers(1, POOL), st.integers(0, 31), st.sampled_from([32, 64, 128]))


@settings(max_examples=60, deadline=None)
@given(places, sizes, st.integers(1, 16), st.integers(1, 6), st.floats(0.1, 6), st.integers(0, 99))
def test_scores_are_those_of_torch(
    order: list[int], size: tuple[int, int, int], n: int, group: int, sharpness: float, seed: int
) -> None:
    pages, missing, dim = size
    cache, packed = cache_of(32, dim, sharpness, seed)
    tokens = max(pages * 32 - missing, n)
    table, scale = torch.tensor(order[:pages]), dim**-0.5
    generator = torch.Generator().manual_seed(seed + 1)
    queries = torch.randn(LAYERS, n, HEADS * group, dim, generator=generator).bfloat16()
    for layers in (slice(0, LAYERS), slice(1, 2)):
        found = packed.window_scores(layers, table, tokens, queries[layers], scale)
        view = CacheView(
            keys=cache.keys(layers, table)[:, :, :tokens],
            values=cache.values(layers, table)[:, :, :tokens],
            scale=scale,
            window=queries[layers],
        )
        torch.testing.assert_close(found, window(view), rtol=2e-5, atol=1e-8)


@settings(max_examples=60, deadline=None)
@given(
    places, sizes, st.integers(1, 6), st.floats(0.1, 6), st.floats(0.3, 0.99), st.integers(0, 99)
)
def test_demand_is_that_of_torch(
    order: list[int],
    size: tuple[int, int, int],
    group: int,
    sharpness: float,
    mass: float,
    seed: int,
) -> None:
    pages, missing, dim = size
    cache, packed = cache_of(32, dim, sharpness, seed)
    tokens = max(pages * 32 - missing, 2)
    table, scale, layers = torch.tensor(order[:pages]), dim**-0.5, slice(0, LAYERS)
    generator = torch.Generator().manual_seed(seed + 1)
    summaries = torch.randn(2, LAYERS, HEADS * group, dim, generator=generator)
    capacities = [tokens // 2, tokens]
    found = packed.demand_by_head(layers, table, tokens, summaries, scale, mass, capacities)
    keys = cache.float_keys(layers, table)[:, :, :tokens]
    expected = demand_by_head(summaries, keys, scale, mass, capacities)
    # A sum that is within rounding of the mass may need one key more or fewer.
    different = (found[:, :2] != expected[:, :2]).sum()
    assert (found[:, :2] - expected[:, :2]).abs().max() <= 1
    assert different <= max(1, found[:, :2].numel() // 50)
    torch.testing.assert_close(found[:, 3:], expected[:, 3:], rtol=0, atol=2e-6)


def test_keys_that_are_no_numbers_are_reported_by_the_demand() -> None:
    cache, packed = cache_of(32, 32, 1, 0)
    cache.pages[0, 2, 0, 0] = torch.nan
    summaries = torch.ones(2, LAYERS, HEADS, 32)
    found = packed.demand_by_head(
        slice(0, LAYERS), torch.tensor([2, 3]), 40, summaries, 0.2, 0.9, [20]
    )
    assert found[0, 3].isnan()
    assert not found[1:, 3].isnan().any()

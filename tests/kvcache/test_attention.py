"""Attention looked at where pages lie, against the torch code for any layout and device."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from growpage.budget.demand import demand_by_head
from growpage.budget.scores import CacheView, window
from growpage.budget.selection import fitting_quota, select_by_sorting
from growpage.kvcache.eight_bit import EightBitFloats
from growpage.kvcache.layout import LAYOUTS
from growpage.kvcache.packed import PackedPages
from growpage.kvcache.paged import PagedCache
from tests.kvcache.loops import amx, needs_compiler, needs_tiles

pytestmark = needs_compiler

LAYERS, POOL, HEADS = 3, 7, 2
ALL = slice(0, LAYERS)
SAME = 2e-5
"""Scores that differ by no more of themselves may be in another order."""


EIGHT_BIT = torch.float8_e4m3fn, torch.float8_e5m2
in_every_layout = pytest.mark.parametrize("layout", ["vec", amx])
as_all_are_stored = pytest.mark.parametrize(
    ("layout", "stored"),
    [
        *(("vec", stored) for stored in (torch.float32, torch.bfloat16, *EIGHT_BIT)),
        *(pytest.param("amx", s, marks=needs_tiles) for s in (torch.bfloat16, *EIGHT_BIT)),
    ],
    ids=str,
)


def cache_of(
    page: int,
    dim: int,
    sharpness: float,
    seed: int,
    layout: str,
    stored: torch.dtype = torch.bfloat16,
) -> tuple[PagedCache, PackedPages]:
    """Random numbers, between other memory that is no number."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(LAYERS, POOL, HEADS, 2, page * dim, generator=generator) * sharpness
    memory = torch.full((LAYERS, POOL + 1, *numbers.shape[2:]), torch.nan).to(stored)
    memory[:, 1:] = numbers.to(stored)
    codes = None
    if stored.itemsize == 1:
        codes = EightBitFloats(stored, [1.0, 0.5, 2.25], [3.0, 1.0, 0.125])
        memory = memory.view(torch.uint8)
    cache = PagedCache(memory[:, 1:], LAYOUTS[layout], dim, codes)
    assert cache._packed is not None and cache.attending is cache._packed
    return cache, cache._packed


places = st.permutations(range(POOL))
dims = st.sampled_from([16, 48, 64, 80, 128])
sizes = st.tuples(st.integers(1, POOL), st.integers(0, 31), dims)


def suits(layout: str, dim: int, page: int = 32) -> bool:
    """Whether the matrix unit's layout is looked at for such heads; the plain ones always are."""
    return layout != "amx" or dim % 32 == page % 32 == 0


@dataclass(frozen=True)
class Eviction:
    """One compression by the score ``window``, and what it is to be of torch's."""

    source: list[int]
    target: list[int]
    page: int
    tokens: int
    keep: int
    prefix: int
    recent: int
    quota: int
    dim: int
    n: int
    group: int
    sharpness: float
    seed: int

    def queries(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A ring of them, others among it that are no numbers, and the places of the last."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        shape = (LAYERS, 3 * self.n, HEADS * self.group, self.dim)
        ring = torch.full(shape, torch.nan, dtype=dtype)
        start = 1 + self.seed % self.n
        order = torch.arange(start, start + self.n) % self.n + self.n
        chosen = torch.randn(LAYERS, self.n, *shape[2:], generator=generator)
        ring[:, order] = chosen.to(dtype)
        return ring, order

    def run(self, cache: PagedCache, packed: PackedPages) -> tuple[Tensor, Tensor, Tensor]:
        """The scores and the survivors by torch, and which tokens are there afterwards."""
        exact = cache.pages.dtype is torch.float32
        ring, order = self.queries(torch.float32 if exact else torch.bfloat16)
        assert packed.takes(ring)
        table, scale = torch.tensor(self.source), self.dim**-0.5
        keys = cache.stored_keys(ALL, table)[:, :, : self.tokens].clone()
        values = cache.stored_values(ALL, table)[:, :, : self.tokens].clone()
        view = CacheView(
            keys=cache.decode_keys(ALL, keys),
            values=cache.decode_values(ALL, values),
            scale=scale,
            window=ring[:, order],
        )
        scores = window(view)
        kept = select_by_sorting(scores, self.keep, self.prefix, self.recent, self.page, self.quota)
        packed.compact_by_window(
            table,
            torch.tensor(self.target),
            self.tokens,
            ring,
            order,
            scale,
            self.keep,
            prefix=self.prefix,
            recent=self.recent,
            quota=self.quota,
        )
        after = (
            half[:, :, : self.keep]
            for half in (
                cache.stored_keys(ALL, torch.tensor(self.target)),
                cache.stored_values(ALL, torch.tensor(self.target)),
            )
        )
        return scores, kept, self.found((keys, values), tuple(after))

    @staticmethod
    def found(before: tuple[Tensor, Tensor], after: tuple[Tensor, ...]) -> Tensor:
        """Which tokens of ``before [layers, heads, tokens, dim]`` lie ``after``, bit for bit."""
        old, new = (
            torch.cat(pair, dim=-1).contiguous().view(torch.int16) for pair in (before, after)
        )
        same = (new.unsqueeze(3) == old.unsqueeze(2)).all(dim=-1)
        assert (same.sum(dim=-1) == 1).all(), "something else than one of the tokens"
        return same.int().argmax(dim=-1)


@st.composite
def evictions(draw: st.DrawFn) -> Eviction:
    page = draw(st.sampled_from([16, 32, 64, 96]))
    source = draw(places)[: draw(st.integers(1, 4))]
    tokens = len(source) * page - draw(st.integers(0, page - 1))
    prefix = draw(st.integers(0, tokens))
    recent = draw(st.integers(0, min(16, tokens - prefix)))
    keep = draw(st.integers(max(prefix + recent, 1), tokens))
    quota = fitting_quota(
        tokens,
        keep,
        prefix=prefix,
        recent=recent,
        page=page,
        local_quota=draw(st.integers(0, page)),
    )
    filled = -(-keep // page)
    target = draw(st.sampled_from([source, draw(places)]))[:filled]
    return Eviction(
        *(source, target, page, tokens, keep, prefix, recent, quota),
        dim=draw(dims),
        n=min(draw(st.integers(1, 16)), tokens),
        group=draw(st.sampled_from([1, 3, 6, 7])),
        sharpness=draw(st.floats(0.3, 4)),
        seed=draw(st.integers(0, 99)),
    )


@as_all_are_stored
@settings(max_examples=80, deadline=None)
@given(evictions())
def test_survivors_are_those_of_torch(layout: str, stored: torch.dtype, eviction: Eviction) -> None:
    assume(suits(layout, eviction.dim, eviction.page))
    numbers = eviction.page, eviction.dim, eviction.sharpness, eviction.seed
    cache, packed = cache_of(*numbers, layout, stored)
    scores, expected, found = eviction.run(cache, packed)
    assert (found.diff(dim=-1) > 0).all(), "ascending"
    if torch.equal(found, expected):
        return
    for row, ours, theirs in zip(
        scores.flatten(0, 1), found.flatten(0, 1), expected.flatten(0, 1), strict=True
    ):
        gained, lost = (
            row[sorted(set(some.tolist()) - set(others.tolist()))].sort().values
            for some, others in ((ours, theirs), (theirs, ours))
        )
        torch.testing.assert_close(gained, lost, rtol=SAME, atol=0)


@in_every_layout
def test_other_pages_and_what_the_gap_holds_are_left_alone(layout: str) -> None:
    eviction = Eviction([5, 2, 0], [5, 2], 32, 90, 50, 4, 8, 2, 64, 8, 3, 1.0, 0)
    cache, packed = cache_of(32, 64, 1, 0, layout)
    before = cache.pages.clone()
    eviction.run(cache, packed)
    others = [1, 3, 4, 6, 0]
    assert torch.equal(cache.pages[:, others], before[:, others])
    gap = cache.stored_keys(ALL, torch.tensor([2]))[:, :, 18:]
    assert torch.equal(
        gap, PagedCache(before, LAYOUTS[layout], 64).stored_keys(ALL, torch.tensor([2]))[:, :, 18:]
    )


@in_every_layout
@pytest.mark.parametrize("what", [torch.nan, torch.inf, -torch.inf])
def test_keys_that_are_no_numbers_are_evicted_like_any(layout: str, what: float) -> None:
    """A row without scores keeps what it must and fills up with the earliest; others are right."""
    eviction = Eviction([5, 2, 0], [5, 2], 32, 90, 50, 4, 8, 2, 64, 8, 3, 1.0, 0)
    cache, packed = cache_of(32, 64, 1, 0, layout)
    keys = cache.stored_keys(ALL, torch.tensor([2]))
    keys[1, 0, 3] = what
    cache.write(ALL, torch.tensor([2]), keys, cache.stored_values(ALL, torch.tensor([2])))
    scores, expected, found = eviction.run(cache, packed)
    assert scores[1, 0].isnan().all()
    earliest = {*range(8), *range(32, 34), *range(64, 66), *range(82, 90)}
    assert set(found[1, 0].tolist()) >= earliest - set(range(4, 8)) and len(found[1, 0]) == 50
    same = (found == expected).all(dim=-1)
    assert same.sum() == LAYERS * HEADS - 1 or same.all()
    assert same[0].all() and same[2].all() and same[1, 1]


@in_every_layout
def test_values_that_are_no_numbers_go_first(layout: str) -> None:
    eviction = Eviction([5, 2, 0], [5, 2], 32, 90, 50, 4, 8, 2, 64, 8, 3, 1.0, 0)
    cache, packed = cache_of(32, 64, 1, 0, layout)
    values = cache.stored_values(ALL, torch.tensor([2]))
    values[:, :, 3] = torch.nan
    values[:, :, 5] = torch.inf
    cache.write(ALL, torch.tensor([2]), cache.stored_keys(ALL, torch.tensor([2])), values)
    _, expected, found = eviction.run(cache, packed)
    assert torch.equal(found, expected)
    assert not (found == 35).any() and (found == 37).any(dim=-1).all()


@as_all_are_stored
@settings(max_examples=60, deadline=None)
@given(
    places, sizes, st.integers(1, 6), st.floats(0.1, 6), st.floats(0.3, 0.99), st.integers(0, 99)
)
def test_demand_is_that_of_torch(
    layout: str,
    stored: torch.dtype,
    order: list[int],
    size: tuple[int, int, int],
    group: int,
    sharpness: float,
    mass: float,
    seed: int,
) -> None:
    pages, missing, dim = size
    assume(suits(layout, dim))
    cache, packed = cache_of(32, dim, sharpness, seed, layout, stored)
    tokens = max(pages * 32 - missing, 2)
    table, scale = torch.tensor(order[:pages]), dim**-0.5
    generator = torch.Generator().manual_seed(seed + 1)
    summaries = torch.randn(2, LAYERS, HEADS * group, dim, generator=generator)
    capacities = [tokens // 2, tokens]
    found = packed.demand_by_head(table, tokens, summaries, scale, mass, capacities)
    keys = cache.float_keys(ALL, table)[:, :, :tokens]
    expected = demand_by_head(summaries, keys, scale, mass, capacities)
    # A sum that is within rounding of the mass may need one key more or fewer.
    different = (found[:, :2] != expected[:, :2]).sum()
    assert (found[:, :2] - expected[:, :2]).abs().max() <= 1
    assert different <= max(1, found[:, :2].numel() // 50)
    torch.testing.assert_close(found[:, 3:], expected[:, 3:], rtol=0, atol=2e-6)


@as_all_are_stored
def test_keys_that_are_no_numbers_are_reported_by_the_demand(
    layout: str, stored: torch.dtype
) -> None:
    cache, packed = cache_of(32, 32, 1, 0, layout, stored)
    cache.pages.view(stored)[0, 2, 0, 0] = torch.tensor(torch.nan).to(stored)
    summaries = torch.ones(2, LAYERS, HEADS, 32)
    found = packed.demand_by_head(torch.tensor([2, 3]), 40, summaries, 0.2, 0.9, [20])
    assert found[0, 3].isnan()
    assert not found[1:, 3].isnan().any()

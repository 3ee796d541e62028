"""The paged cache and its compaction against a plain array of tokens, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from growpage.kvcache import paged
from growpage.kvcache.layout import LAYOUTS
from growpage.kvcache.paged import PagedCache, keep_survivors, stack_layers

LAYERS, POOL, HEADS, PAGE, DIM = 3, 7, 2, 32, 16
ALL = slice(0, LAYERS)
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
layouts = pytest.mark.parametrize("name", LAYOUTS)


def bits(values: Tensor) -> Tensor:
    """NaN equals itself, and zero is not minus zero."""
    return values.view(BITS[values.dtype])


def noise(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Any bit patterns: NaNs with payloads, infinities, denormals, both zeros."""
    info = torch.iinfo(BITS[dtype])
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randint(info.min, info.max, shape, dtype=BITS[dtype], generator=generator)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    patterns.view(-1)[:5] = bits(special)
    return patterns.view(dtype)


class Model:
    """A cache and what it must hold: ``natural[half] [layers, pool, heads, page, dim]``."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        shape = (LAYERS, POOL, HEADS, PAGE, DIM)
        self.natural = [noise(*shape, dtype=dtype, seed=seed) for seed in (0, 1)]
        layout = LAYOUTS[name]
        halves = [
            tiling.pack(content)
            for tiling, content in zip((layout.keys, layout.values), self.natural, strict=True)
        ]
        # Between other memory, as the engine's is.
        memory = torch.zeros(LAYERS, POOL + 1, HEADS, 2, PAGE * DIM, dtype=dtype)
        self.cache = PagedCache(memory[:, 1:], layout, DIM)
        self.cache.pages.copy_(torch.stack(halves, dim=3))

    def tokens(self, half: int, layers: slice, pages: list[int]) -> Tensor:
        """The plain ``[layers, heads, n * page, dim]``."""
        natural = self.natural[half][layers]
        blank = natural.new_zeros(natural.shape[0], HEADS, 0, DIM)
        return torch.cat([blank, *(natural[:, page] for page in pages)], dim=2)

    def put(self, half: int, layers: slice, pages: list[int], content: Tensor) -> None:
        for place, page in enumerate(pages):
            tokens = slice(place * PAGE, (place + 1) * PAGE)
            self.natural[half][layers, page] = content[:, :, tokens]

    def check(self) -> None:
        everything = torch.arange(POOL)
        for half, found in enumerate(
            (self.cache.keys(ALL, everything), self.cache.values(ALL, everything))
        ):
            assert torch.equal(bits(found), bits(self.tokens(half, ALL, list(range(POOL)))))


@layouts
@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_read_and_write(name: str, dtype: torch.dtype) -> None:
    model = Model(name, dtype)
    cache = model.cache
    assert (cache.layers, cache.kv_heads, cache.page_tokens) == (LAYERS, HEADS, PAGE)
    model.check()
    for layers, pages in ((ALL, [5, 0, 3]), (slice(1, 3), [6]), (slice(2, 3), [])):
        table = torch.tensor(pages, dtype=torch.long)
        for half, read in enumerate((cache.keys, cache.values)):
            found = read(layers, table)
            assert torch.equal(bits(found), bits(model.tokens(half, layers, pages)))
            found.view(BITS[dtype]).zero_()  # a copy: the pool must not notice
        model.check()
        count = layers.stop - layers.start
        keys, values = (
            noise(count, HEADS, PAGE * max(len(pages), 1), DIM, dtype=dtype, seed=s)[
                :, :, : PAGE * len(pages)
            ]
            for s in (2, 3)
        )
        cache.write(layers, table, keys, values)
        model.put(0, layers, pages, keys)
        model.put(1, layers, pages, values)
        model.check()  # other pages and layers included


@st.composite
def moves(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Source pages, no more target pages, overlapping or not and in any order, and a seed."""
    pages = st.permutations(range(POOL))
    source = draw(pages)[: draw(st.integers(1, POOL))]
    target = draw(pages)[: draw(st.integers(0, len(source)))]
    return source, target, draw(st.integers(0, 99))


def compact_both(
    model: Model, layers: slice, source: list[int], target: list[int], seed: int
) -> None:
    """Compact the cache, and the plain arrays token by token."""
    count = layers.stop - layers.start
    generator = torch.Generator().manual_seed(seed)
    rank = torch.rand(count, HEADS, len(source) * PAGE, generator=generator).argsort(-1)
    survivors = rank[..., : len(target) * PAGE].sort(-1).values
    pages = torch.tensor(source)
    keys, values = model.cache.keys(layers, pages), model.cache.values(layers, pages)
    keep_survivors(model.cache, layers, torch.tensor(target).long(), keys, values, survivors)
    for half in (0, 1):
        before = model.tokens(half, layers, source)
        after = before.new_empty(count, HEADS, len(target) * PAGE, DIM)
        for layer in range(count):
            for head in range(HEADS):
                for place, token in enumerate(survivors[layer, head].tolist()):
                    after[layer, head, place] = before[layer, head, token]
        model.put(half, layers, target, after)


@layouts
@settings(max_examples=40)
@given(st.sampled_from(list(BITS)), moves())
def test_compaction_is_bit_exact(
    name: str, dtype: torch.dtype, move: tuple[list[int], list[int], int]
) -> None:
    model = Model(name, dtype)
    for layers in (slice(0, 2), slice(2, 3)):
        compact_both(model, layers, *move)
    model.check()  # pages that are no target included


@layouts
@pytest.mark.parametrize("left", [1, 20, PAGE - 1])
def test_a_last_page_that_is_not_filled(name: str, left: int) -> None:
    """The tokens before the gap are bit for bit right, and no other page is touched."""
    model = Model(name, torch.bfloat16)
    source, target = [4, 1, 2], [1, 6]
    count = 2 * PAGE - left
    rank = torch.rand(LAYERS, HEADS, 3 * PAGE, generator=torch.Generator().manual_seed(3))
    survivors = rank.argsort(-1)[..., :count].sort(-1).values
    pages = torch.tensor(source)
    keys, values = model.cache.keys(ALL, pages), model.cache.values(ALL, pages)
    where = survivors[..., None].expand(-1, -1, -1, DIM)
    expected = [bits(half).gather(2, where) for half in (keys, values)]
    keep_survivors(model.cache, ALL, torch.tensor(target), keys, values, survivors)
    found = (
        model.cache.keys(ALL, torch.tensor(target)),
        model.cache.values(ALL, torch.tensor(target)),
    )
    for half, read in enumerate(found):
        assert torch.equal(bits(read)[:, :, :count], expected[half])
        model.put(half, ALL, target, read)  # whatever the gap holds
    model.check()


@given(st.integers(1, 80), st.integers(1, 8), st.integers(0, 5000), st.integers(1, 1 << 24))
def test_layer_chunks_cover_all_layers_within_bounds(
    layers: int, heads: int, tokens: int, most: int
) -> None:
    cache = PagedCache(torch.empty(layers, 1, heads, 2, PAGE * DIM), LAYOUTS["vec"], DIM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged, "MAX_TEMPORARY_BYTES", most)
        chunks = list(cache.layer_chunks(tokens))
    covered = [layer for chunk in chunks for layer in range(chunk.start, chunk.stop)]
    assert covered == list(range(layers))
    for chunk in chunks:
        size = chunk.stop - chunk.start
        assert size == 1 or size * heads * tokens * DIM * 4 * 4 <= most


@given(st.lists(st.integers(1, 3000), max_size=20), st.integers(1, 1 << 22))
def test_row_chunks_cover_all_rows_within_bounds(lengths: list[int], most: int) -> None:
    cache = PagedCache(torch.empty(1, 1, HEADS, 2, PAGE * DIM), LAYOUTS["vec"], DIM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged, "MAX_TEMPORARY_BYTES", most)
        chunks = list(cache.row_chunks(lengths))
    assert sorted(row for chunk in chunks for row in chunk) == list(range(len(lengths)))
    longest = [lengths[chunk[0]] for chunk in chunks]
    assert longest == sorted(longest, reverse=True)
    for chunk, padded in zip(chunks, longest, strict=True):
        assert max(lengths[row] for row in chunk) == padded
        assert len(chunk) == 1 or len(chunk) * HEADS * padded * DIM * 4 * 4 <= most


@layouts
def test_several_tables_are_read_at_once(name: str) -> None:
    model = Model(name, torch.bfloat16)
    tables = torch.tensor([[4, 1, 6], [0, 1, 2]])
    together = model.cache.keys(slice(1, 3), tables)
    assert together.shape == (2, 2, HEADS, 3 * PAGE, DIM)
    for row, table in enumerate(tables):
        alone = model.cache.keys(slice(1, 3), table)
        assert torch.equal(bits(together[:, row].contiguous()), bits(alone))


# ---- one view of all layers ----------------------------------------------------------------------


def spaced(offsets: list[int], size: int = 12) -> list[Tensor]:
    memory = torch.zeros(100)
    return [memory[offset : offset + size].view(3, 4) for offset in offsets]


@pytest.mark.parametrize("offsets", [[0, 12, 24], [5, 25, 45, 65], [7], [0, 20]])
def test_stacked_layers_are_the_same_memory(offsets: list[int]) -> None:
    layers = spaced(offsets)
    stacked = stack_layers(layers)
    assert stacked.shape == (len(offsets), 3, 4)
    stacked.copy_(torch.arange(stacked.numel()).view_as(stacked))
    for index, layer in enumerate(layers):
        assert torch.equal(layer, stacked[index]) and layer.data_ptr() == stacked[index].data_ptr()
    layers[-1][2, 3] = -1
    assert stacked[-1, 2, 3] == -1


def test_interleaved_layers_stack() -> None:
    memory = torch.arange(24.0).view(3, 2, 4)  # [pages, layers, ...]
    stacked = stack_layers([memory[:, layer] for layer in range(2)])
    assert torch.equal(stacked, memory.transpose(0, 1))
    assert stacked.data_ptr() == memory.data_ptr()


@pytest.mark.parametrize("offsets", [[0, 12, 25], [0, 12, 12], [0, 24, 12]])
def test_unequal_spacing_is_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="not equally spaced in one allocation"):
        stack_layers(spaced(offsets))


def test_layers_that_differ_are_refused() -> None:
    memory = torch.zeros(100)
    first = memory[:12].view(3, 4)
    for other in (
        torch.zeros(100)[12:24].view(3, 4),
        memory[12:24].view(4, 3),
        memory[12:24].view(4, 3).t(),
        memory[12:20].view(2, 4),
    ):
        with pytest.raises(ValueError, match="not equally spaced in one allocation"):
            stack_layers([first, other])


@pytest.mark.parametrize("offsets", [[24, 12, 0], [12, 12]])
def test_descending_and_identical_layers_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="not equally spaced in one allocation"):
        stack_layers(spaced(offsets))

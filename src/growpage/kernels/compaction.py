"""Survivors of an eviction, moved to their pages: all layers and KV heads in one launch, in place.

Why a page may be read and written in one launch. Let ``survivors[i]`` be the place, in the source
pages, of the token that moves to place ``i`` of the target pages. Places ascend, so
``i <= survivors[i]``. Writing to place ``i`` destroys a token of the source only if its page is the
source's as well; say it is the token at place ``q``. If the page stands no earlier in the target
than in the source, then ``q <= i``, and a survivor that lies at ``q`` is some ``survivors[r] = q``
with ``r <= q <= i``: it has moved already, or moves with place ``i`` itself. So a program that
walks one layer and head in ascending order, and reads each block of places before it writes that
block, never reads what it has written. No other program touches these elements: the grid cuts
layers, heads and the columns of a token, never its places. Pages that stand earlier in the target
than in the source break the premise; those are copied aside before the launch and read from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
_PLACES = 64  # of one read and write
_COLUMN_BYTES = 128  # that one program moves of each token: whole sectors, and enough programs


def compact(cache: Tensor, survivors: Tensor, source: Sequence[int], target: Sequence[int]) -> None:
    """Move ``survivors`` from the ``source`` pages to the ``target`` pages, bit for bit.

    Elements move as integers, so every bit pattern arrives as it was. What the survivors leave of
    the last target page, and every other page, is not touched. Nothing waits for the device.

    Temporaries: the pages that are in both tables, earlier in the target than in the source, of all
    layers; none where every own page keeps its place or moves back.

    Args:
        cache: ``[layers, pages, kv_heads, page_tokens, 2 * dim]`` of any 1, 2, 4 or 8-byte dtype,
            contiguous in its last axis.
        survivors: ``[layers, kv_heads, n]`` int64, contiguous: ascending places in the source.
        source: page numbers, all different.
        target: page numbers, all different, with room for ``n`` tokens.

    Raises:
        ValueError: a table names a page twice, the target is too small, or a tensor is not as
            described.
    """
    layers, _, kv_heads, page_tokens, _ = cache.shape
    count = survivors.shape[-1]
    if survivors.shape[:2] != (layers, kv_heads) or survivors.dtype != torch.int64:
        raise ValueError(
            f"survivors are {list(survivors.shape)} of {survivors.dtype}; a cache of {layers} "
            f"layers and {kv_heads} KV heads needs [{layers}, {kv_heads}, n] of torch.int64"
        )
    if not survivors.is_contiguous():
        raise ValueError("survivors are not contiguous; pass survivors.contiguous()")
    for name, table in (("source", source), ("target", target)):
        if len(set(table)) < len(table):
            raise ValueError(f"the {name} names a page twice: {list(table)}")
    if count > len(target) * page_tokens:
        raise ValueError(
            f"{len(target)} target pages of {page_tokens} tokens have no room for {count} survivors"
        )
    if count == 0:
        return
    words = _as_words(cache)
    aside = overwritten_early(source, target)
    staged = words[:, torch.tensor(aside, device=cache.device)] if aside else words
    where = {page: index for index, page in enumerate(aside)}
    tables = torch.tensor(
        [*source, *(where.get(page, -1) for page in source), *target], device=cache.device
    )
    columns = triton.next_power_of_2(min(words.shape[-1], _COLUMN_BYTES // words.itemsize))
    _move[(layers, kv_heads, triton.cdiv(words.shape[-1], columns))](
        words,
        staged,
        survivors,
        tables,
        count,
        len(source),
        kv_heads,
        words.shape[-1],
        *words.stride()[:4],
        *staged.stride()[:4],
        PAGE=page_tokens,
        PLACES=_PLACES,
        COLUMNS=columns,
        num_stages=1,
    )


def overwritten_early(source: Sequence[int], target: Sequence[int]) -> list[int]:
    """The pages whose tokens an ascending walk would overwrite before it has read them."""
    place = {page: index for index, page in enumerate(source)}
    return [page for index, page in enumerate(target) if place.get(page, -1) > index]


def _as_words(cache: Tensor) -> Tensor:
    """``cache`` as the widest integers that its strides and its place in memory allow."""
    if cache.stride(-1) != 1:
        raise ValueError(f"the cache's last axis has stride {cache.stride(-1)}; it must be 1")
    sizes = (cache.shape[-1], *cache.stride()[:-1], cache.storage_offset())
    for size, dtype in _WORDS.items():
        if all(extent * cache.itemsize % size == 0 for extent in sizes):
            return cache.view(dtype)
    raise ValueError(f"elements of {cache.dtype} cannot be moved as integers")


@triton.jit
def _move(
    cache,
    staged,
    survivors,
    tables,
    count,
    source_pages,
    kv_heads,
    width,
    cache_layer,
    cache_page,
    cache_head,
    cache_token,
    staged_layer,
    staged_page,
    staged_head,
    staged_token,
    PAGE: tl.constexpr,
    PLACES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    layer, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    survivors += (layer * kv_heads + head) * count
    cache += layer * cache_layer + head * cache_head + column[None, :]
    staged += layer * staged_layer + head * staged_head + column[None, :]
    for start in range(0, count, PLACES):
        place = start + tl.arange(0, PLACES)
        there = place < count
        token = tl.load(survivors + place, mask=there, other=0)
        page = tl.load(tables + token // PAGE, mask=there, other=0)
        aside = tl.load(tables + source_pages + token // PAGE, mask=there, other=-1)
        goal = tl.load(tables + 2 * source_pages + place // PAGE, mask=there, other=0)
        old = page * cache_page + token % PAGE * cache_token
        new = goal * cache_page + place % PAGE * cache_token
        kept = aside * staged_page + token % PAGE * staged_token
        moves = (there & ((old != new) | (aside >= 0)))[:, None] & (column < width)[None, :]
        pointers = tl.where((aside >= 0)[:, None], staged + kept[:, None], cache + old[:, None])
        words = tl.load(pointers, mask=moves)
        tl.debug_barrier()  # the whole block is read before any of it is written
        tl.store(cache + new[:, None], words, mask=moves)

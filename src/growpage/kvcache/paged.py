"""The page pool of all layers, read and rewritten in natural order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from growpage.kvcache.eight_bit import EightBitFloats
from growpage.kvcache.layout import PageLayout
from growpage.kvcache.packed import PackedPages

MAX_TEMPORARY_BYTES = 8 << 20
"""What one pass over some layers may allocate; more layers are taken in several passes."""


class PagedCache:
    """Keys and values of every layer, addressed by page.

    Args:
        pages: ``[layers, pages, kv_heads, 2, page_tokens * dim]``, the keys' half first: a view of
            the engine's own memory.
        layout: how each half is stored.
        dim: head size.
        codes: what the elements of ``pages`` stand for, if they are bytes; none if they are the
            numbers themselves.
    """

    def __init__(
        self, pages: Tensor, layout: PageLayout, dim: int, codes: EightBitFloats | None = None
    ) -> None:
        self.pages = pages
        self.layout = layout
        self.dim = dim
        self.codes = codes
        self.layers, _, self.kv_heads, _, half = pages.shape
        self.page_tokens = half // dim
        self._packed = PackedPages.of(pages, layout, dim, codes)

    def keys(self, layers: slice, pages: Tensor) -> Tensor:
        """The numbers in ``pages [..., n]``: ``[layers, ..., kv_heads, n * page_tokens, dim]``."""
        return self.decode_keys(layers, self.stored_keys(layers, pages))

    def values(self, layers: slice, pages: Tensor) -> Tensor:
        """The numbers in ``pages [n]``: ``[layers, kv_heads, n * page_tokens, dim]``."""
        return self.decode_values(layers, self.stored_values(layers, pages))

    def float_keys(self, layers: slice, pages: Tensor) -> Tensor:
        """As :meth:`keys` of ``pages [n]``, in float32."""
        if self._packed is not None and self._packed.readable:
            return self._packed.keys(layers, pages)
        return self.keys(layers, pages).float()

    def float_values(self, layers: slice, pages: Tensor) -> Tensor:
        """As :meth:`values`, in float32."""
        if self._packed is not None and self._packed.readable:
            return self._packed.values(layers, pages)
        return self.values(layers, pages).float()

    @property
    def attending(self) -> PackedPages | None:
        """The pages themselves, if attention can be looked at where they lie."""
        packed = self._packed
        return packed if packed is not None and packed.attends else None

    def compact(self, source: Tensor, target: Tensor, survivors: Tensor) -> None:
        """Move the survivors of all layers to the first places of ``target``, bit for bit.

        What they leave of the last page is undefined afterwards.

        Args:
            source: ``[n]`` page numbers, in the order of their tokens.
            target: ``[m]`` page numbers; they may be some of ``source``, in any order.
            survivors: ``[layers, kv_heads, k]`` ascending token indices, ``k`` at most
                ``m * page_tokens`` and more than one page less.
        """
        if self._packed is not None:
            self._packed.move(source, target, survivors)
            return
        for layers in self.layer_chunks(len(source) * self.page_tokens):
            keys, values = self.stored_keys(layers, source), self.stored_values(layers, source)
            keep_survivors(self, layers, target, keys, values, survivors[layers])

    def stored_keys(self, layers: slice, pages: Tensor) -> Tensor:
        """As :meth:`keys`, but as stored, so that it can be written again bit for bit."""
        return self._read(layers, pages, 0)

    def stored_values(self, layers: slice, pages: Tensor) -> Tensor:
        """As :meth:`values`, but as stored, so that it can be written again bit for bit."""
        return self._read(layers, pages, 1)

    def decode_keys(self, layers: slice, stored: Tensor) -> Tensor:
        """The numbers of ``stored [layers, ...]`` keys; in float32 if they are bytes."""
        return stored if self.codes is None else self.codes.decode(layers, 0, stored)

    def decode_values(self, layers: slice, stored: Tensor) -> Tensor:
        """The numbers of ``stored [layers, ...]`` values; in float32 if they are bytes."""
        return stored if self.codes is None else self.codes.decode(layers, 1, stored)

    def write(self, layers: slice, pages: Tensor, keys: Tensor, values: Tensor) -> None:
        """Fill whole ``pages [n]`` with stored ``[layers, kv_heads, n * page_tokens, dim]``."""
        for half, content, tiling in (
            (0, keys, self.layout.keys),
            (1, values, self.layout.values),
        ):
            paged = content.unflatten(2, (len(pages), self.page_tokens)).transpose(1, 2)
            self._half(layers, half)[:, pages] = tiling.pack(paged)

    def layer_chunks(self, tokens: int) -> Iterator[slice]:
        """Slices of the layers such that a few float copies of ``tokens`` keys stay in bounds."""
        size = self._layers_at_once(tokens)
        for start in range(0, self.layers, size):
            yield slice(start, min(start + size, self.layers))

    def row_chunks(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indices of rows of so many tokens, longest first.

        Padded to the longest of a chunk, a few float copies of one layer's keys stay in bounds.
        """
        rows = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
        while rows:
            size = self._layers_at_once(lengths[rows[0]])
            yield rows[:size]
            rows = rows[size:]

    def _layers_at_once(self, tokens: int) -> int:
        per_layer = 4 * 4 * self.kv_heads * max(tokens, 1) * self.dim
        return max(1, MAX_TEMPORARY_BYTES // per_layer)

    def _half(self, layers: slice, half: int) -> Tensor:
        """A view ``[layers, pages, kv_heads, page_tokens * dim]`` of all keys, or all values."""
        return self.pages[layers].select(3, half)

    def _read(self, layers: slice, pages: Tensor, half: int) -> Tensor:
        tiling = self.layout.values if half else self.layout.keys
        # Not index_select: on a view with gaps it first copies the view, here the whole pool.
        stored = self._half(layers, half)[:, pages]
        return tiling.unpack(stored, self.dim).transpose(-4, -3).flatten(-3, -2)


def stack_layers(layers: Sequence[Tensor]) -> Tensor:
    """One ``[layers, ...]`` view of per-layer caches that lie equally spaced in one allocation.

    Raises:
        ValueError: they do not, so that a view of them all is impossible.
    """
    first = layers[0]
    offsets = [layer.storage_offset() for layer in layers]
    stride = offsets[1] - offsets[0] if len(layers) > 1 else first.numel()
    same = all(
        layer.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and layer.shape == first.shape
        and layer.stride() == first.stride()
        and offset == offsets[0] + index * stride
        for index, (layer, offset) in enumerate(zip(layers, offsets, strict=True))
    )
    if not same or stride <= 0:
        raise ValueError("the layers' caches are not equally spaced in one allocation")
    return torch.as_strided(
        first, (len(layers), *first.shape), (stride, *first.stride()), offsets[0]
    )


def keep_survivors(
    cache: PagedCache,
    layers: slice,
    target: Tensor,
    keys: Tensor,
    values: Tensor,
    survivors: Tensor,
) -> None:
    """Write the survivors of ``keys`` and ``values`` to the ``target`` pages, bit for bit.

    ``keys`` and ``values`` are copies, as :meth:`PagedCache.stored_keys` returns them, so the
    target may overlap the pages that they were read from in any order.

    Args:
        cache: the pool.
        layers: the layers that the other arguments speak of.
        target: ``[m]`` page numbers. What the survivors leave of the last page is overwritten too.
        keys: ``[layers, kv_heads, tokens, dim]``.
        values: as ``keys``.
        survivors: ``[layers, kv_heads, n]`` ascending token indices, ``n`` at most
            ``m * page_tokens`` and more than one page less.
    """
    room = len(target) * cache.page_tokens - survivors.shape[-1]
    if room:
        filler = survivors[..., -1:].expand(*survivors.shape[:-1], room)
        survivors = torch.cat((survivors, filler), dim=-1)
    cache.write(layers, target, _take(keys, survivors), _take(values, survivors))


def _take(rows: Tensor, survivors: Tensor) -> Tensor:
    """Rows by index, moved as integers: torch's gather of 16-bit floats rewrites NaNs."""
    words = rows.contiguous().view(torch.int64)
    where = survivors.unsqueeze(-1).expand(*survivors.shape, words.shape[-1])
    return words.gather(2, where).view(rows.dtype)

"""Pages on the CPU, looked at and compacted as they lie.

What :class:`growpage.kvcache.paged.PagedCache` does with torch in any layout and on any device,
done here in one pass over the memory: for the layout of the matrix unit that the fastest CPUs have,
and for the plain ones of all others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from growpage.compiled import Loops, loops
from growpage.kvcache.eight_bit import EightBitFloats
from growpage.kvcache.layout import LAYOUTS, PageLayout

_TILE = 16
_TILED = LAYOUTS["amx"]
_PLAIN = LAYOUTS["vec"], LAYOUTS["vec16"]


class PackedPages:
    """A pool that compiled loops can work on.

    Args:
        pages: ``[layers, pages, kv_heads, 2, page_tokens * dim]``, as :meth:`fits` wants them.
        layout: of a page.
        dim: head size.
        codes: what the elements stand for, if they are bytes.
        loops: compiled.
    """

    def __init__(
        self,
        pages: Tensor,
        layout: PageLayout,
        dim: int,
        codes: EightBitFloats | None,
        loops: Loops,
    ) -> None:
        self._loops = loops
        self._tiled = layout is _TILED
        self._codes = codes
        self._magnitudes = torch.empty(0) if codes is None else codes.magnitudes
        self._layers, _, self._heads, _, half = pages.shape
        self._page = half // dim
        self._dim = dim
        self._key_scales = torch.ones(self._layers, dtype=torch.double)
        if codes is not None:
            self._key_scales *= codes.scales[0]
        self._dtype = pages.dtype
        self._halves = pages.select(3, 0), pages.select(3, 1)
        self._strides = torch.tensor([pages.stride(axis) for axis in (0, 1, 2)])

    @classmethod
    def of(
        cls, pages: Tensor, layout: PageLayout, dim: int, codes: EightBitFloats | None = None
    ) -> PackedPages | None:
        """The pool, if its pages of head size ``dim`` fit, and there are loops for them."""
        compiled = loops() if cls.fits(pages, layout, dim) else None
        if compiled is None or (layout is _TILED and not compiled.tiled_pages):
            return None
        return cls(pages, layout, dim, codes, compiled)

    @staticmethod
    def fits(pages: Tensor, layout: PageLayout, dim: int) -> bool:
        """Whether pages of head size ``dim`` are laid out, stored, and placed as they must be."""
        tokens = pages.shape[-1] // dim
        dtypes = {torch.bfloat16, torch.float16, torch.uint8}
        if layout in _PLAIN:
            dtypes.add(torch.float32)
        return (
            (layout is _TILED or layout in _PLAIN)
            and pages.device.type == "cpu"
            and pages.dtype in dtypes
            and tokens % _TILE == dim % _TILE == 0
            and pages.stride(4) == 1
        )

    @property
    def readable(self) -> bool:
        """Whether numbers are read here faster than by torch, which reads a plain layout well."""
        return self._tiled and self._has_numbers

    @property
    def _has_numbers(self) -> bool:
        """Whether the elements are known as numbers: half of float32's bits are a bfloat16's, which
        bytes are widened to."""
        known = (torch.bfloat16, torch.float32)
        return self._dtype in known or self._codes is not None

    def keys(self, layers: slice, table: Tensor) -> Tensor:
        """In float32 ``[layers, kv_heads, tokens, dim]``, with a token's numbers apart in memory,
        as a product with queries reads them best."""
        out = self._empty(layers, self._dim, len(table) * self._page)
        self._read("read_keys", layers, 0, table, out)
        return self._scaled(layers, 0, out).transpose(-1, -2)

    def values(self, layers: slice, table: Tensor) -> Tensor:
        """In float32 ``[layers, kv_heads, tokens, dim]``."""
        out = self._empty(layers, len(table) * self._page, self._dim)
        self._read("read_values", layers, 1, table, out)
        return self._scaled(layers, 1, out)

    def _read(self, loop: str, layers: slice, half: int, table: Tensor, out: Tensor) -> None:
        cache = self._dtype.itemsize, self._halves[half][layers], self._strides
        rows = len(out) * self._heads, self._heads
        pages = table.contiguous(), len(table), self._page, self._dim
        self._loops(loop, *cache, *rows, *pages, self._magnitudes, out)

    def _scaled(self, layers: slice, half: int, numbers: Tensor) -> Tensor:
        if self._codes is None:
            return numbers
        return numbers.mul_(self._codes.scales[half, layers].view(-1, 1, 1, 1))

    @property
    def attends(self) -> bool:
        """Whether attention can be looked at here: in place, or in a copy of one head's bytes."""
        return self._has_numbers and self._dim % (2 * _TILE if self._tiled else _TILE) == 0

    def takes(self, queries: Tensor) -> bool:
        """Whether queries are stored as those of a model with such pages."""
        exact = self._dtype is torch.float32
        return queries.dtype is (torch.float32 if exact else torch.bfloat16)

    def compact_by_window(
        self,
        source: Tensor,
        target: Tensor,
        tokens: int,
        ring: Tensor,
        places: Tensor,
        scale: float,
        keep: int,
        *,
        prefix: int,
        recent: int,
        quota: int,
    ) -> None:
        """Keep the best tokens by the score ``window`` of all layers, and move them to ``target``.

        What :func:`growpage.budget.scores.window`,
        :func:`growpage.budget.selection.select_survivors` and :meth:`move` do one after the other,
        done head by head while a head's memory is near. Scores differ from torch's by some 1e-5 of
        themselves, and who survives by that alone. A layer's scale of 8-bit values is left out: it
        changes no order. It allocates no more than ``4 * (tokens + page) * (n * group + 16 + dim)``
        bytes, for one head, and for pages of bytes ``tokens * dim`` more, in a plain layout five
        times as much.

        Args:
            source: ``[pages]`` page numbers.
            target: page numbers, as many as are filled.
            tokens: cached in ``source``.
            ring: ``[layers, places, query_heads, dim]`` queries, as :meth:`takes` wants them.
            places: ``[n]`` where those of the last ``n`` tokens are, in order.
            scale: logit scale, positive.
            keep: survivors.
            prefix: leading tokens that are kept, as are ``recent`` ones.
            recent: see ``prefix``.
            quota: tokens kept of each page; it must fit.
        """
        self._loops(
            "compact_by_window",
            self._tiled,
            self._dtype.itemsize,
            *self._halves,
            self._strides,
            self._layers * self._heads,
            self._heads,
            source.contiguous(),
            len(source),
            target.contiguous(),
            tokens,
            self._page,
            self._dim,
            self._magnitudes,
            ring,
            ring.stride(0),
            places,
            len(places),
            ring.shape[2] // self._heads,
            self._key_scales * scale,
            keep,
            prefix,
            recent,
            quota,
        )

    def demand_by_head(
        self,
        table: Tensor,
        tokens: int,
        summaries: Tensor,
        scale: float,
        mass: float,
        capacities: Sequence[int],
    ) -> Tensor:
        """As :func:`growpage.budget.demand.demand_by_head`, of the keys of all layers in these
        pages.

        It allocates some ``4 * tokens * (2 * group + 20)`` bytes, for one head, and for bytes
        ``2 * tokens * dim`` more, in a plain layout twice as much.

        Args:
            table: ``[pages]`` page numbers.
            tokens: cached in them.
            summaries: ``[2, layers, query_heads, dim]`` in float32.
            scale: logit scale, positive.
            mass: of a working set.
            capacities: for which a loss is wanted.
        """
        query_heads = summaries.shape[2]
        out = torch.empty(self._layers * query_heads, 3 + len(capacities), dtype=torch.double)
        self._loops(
            "measure_rows",
            self._tiled,
            self._dtype.itemsize,
            self._halves[0],
            self._strides,
            self._layers * self._heads,
            self._heads,
            table.contiguous(),
            len(table),
            tokens,
            self._page,
            self._dim,
            self._magnitudes,
            summaries.contiguous(),
            query_heads // self._heads,
            self._key_scales * scale,
            float(mass),
            torch.tensor(capacities, dtype=torch.long),
            len(capacities),
            out,
        )
        return out

    def move(self, source: Tensor, target: Tensor, survivors: Tensor) -> None:
        """Write the survivors among the tokens of ``source`` to ``target``, bit for bit.

        Args:
            source: ``[n]`` page numbers.
            target: ``[m]`` page numbers, which may be some of ``source``, in any order.
            survivors: ``[layers, kv_heads, k]`` ascending token indices, of all layers.
        """
        rows = survivors.flatten(0, 1).contiguous()
        self._loops(
            "move_rows",
            self._tiled,
            self._dtype.itemsize,
            *self._halves,
            self._strides,
            len(rows),
            self._heads,
            source.contiguous(),
            len(source),
            target.contiguous(),
            rows,
            rows.shape[1],
            self._page,
            self._dim,
        )

    def _empty(self, layers: slice, rows: int, columns: int) -> Tensor:
        return torch.empty(layers.stop - layers.start, self._heads, rows, columns)

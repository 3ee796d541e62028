"""Pages of 16-bit numbers in the layout ``amx``, read and compacted as they lie.

What :class:`growpage.kvcache.paged.PagedCache` does with torch in any layout and on any device,
done here in one pass over the memory, for the layout that the fastest CPUs use.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from growpage.compiled import Loops, loops
from growpage.kvcache.layout import LAYOUTS, PageLayout

_TILE = 16


class PackedPages:
    """A pool that compiled loops can work on.

    Args:
        pages: ``[layers, pages, kv_heads, 2, page_tokens * dim]``, as :meth:`fits` wants them.
        dim: head size.
        loops: compiled.
    """

    def __init__(self, pages: Tensor, dim: int, loops: Loops) -> None:
        self._loops = loops
        _, _, self._heads, _, half = pages.shape
        self._page = half // dim
        self._dim = dim
        self._dtype = pages.dtype
        self._half = half
        # Of 32-bit and 64-bit words, each two or four numbers.
        strides = torch.tensor([pages.stride(axis) for axis in (0, 1, 2)])
        self._strides = {2: strides // 2, 4: strides // 4}
        self._pages = pages

    @classmethod
    def of(cls, pages: Tensor, layout: PageLayout, dim: int) -> PackedPages | None:
        """The pool, if its pages of head size ``dim`` fit, and loops can be compiled."""
        compiled = loops() if cls.fits(pages, layout, dim) else None
        return None if compiled is None else cls(pages, dim, compiled)

    @staticmethod
    def fits(pages: Tensor, layout: PageLayout, dim: int) -> bool:
        """Whether pages of head size ``dim`` are laid out, stored, and placed as they must be."""
        tokens = pages.shape[-1] // dim
        return (
            layout is LAYOUTS["amx"]
            and pages.device.type == "cpu"
            and pages.dtype in (torch.bfloat16, torch.float16)
            and tokens % _TILE == dim % _TILE == 0
            and pages.stride(4) == 1
            and pages.stride(3) == pages.shape[4]
            and all(step % 4 == 0 for step in pages.stride()[:3])
            and pages.data_ptr() % 8 == 0
        )

    @property
    def readable(self) -> bool:
        """Whether numbers can be read: half of float32's bits are a bfloat16's."""
        return self._dtype is torch.bfloat16

    def keys(self, layers: slice, table: Tensor) -> Tensor:
        """In float32 ``[layers, kv_heads, tokens, dim]``, with a token's numbers apart in memory,
        as a product with queries reads them best."""
        out = self._empty(layers, self._dim, len(table) * self._page)
        self._read("read_keys", layers, 0, table, self._dim // 2, out)
        return out.transpose(-1, -2)

    def values(self, layers: slice, table: Tensor) -> Tensor:
        """In float32 ``[layers, kv_heads, tokens, dim]``."""
        out = self._empty(layers, len(table) * self._page, self._dim)
        self._read("read_values", layers, 1, table, self._dim, out)
        return out

    def _read(
        self, loop: str, layers: slice, half: int, table: Tensor, size: int, out: Tensor
    ) -> None:
        table = table.contiguous()
        rows = len(out) * self._heads
        first = self._pages[layers].select(3, half)
        self._loops(
            loop,
            first,
            self._strides[2],
            rows,
            self._heads,
            table,
            len(table),
            self._page,
            size,
            out,
        )

    def attends(self, queries: Tensor, tokens: int) -> bool:
        """Whether attention of ``queries [..., n, query_heads, dim]`` can be looked at in place."""
        return (
            self._loops.attend
            and self.readable
            and self._dim % (2 * _TILE) == 0
            and queries.shape[-3] <= tokens
        )

    def window_scores(
        self, layers: slice, table: Tensor, tokens: int, queries: Tensor, scale: float
    ) -> Tensor:
        """The score ``window``, as :func:`growpage.budget.scores.window` has it.

        Args:
            layers: of the cache.
            table: ``[pages]`` page numbers.
            tokens: cached in them.
            queries: ``[layers, n, query_heads, dim]`` of the last ``n`` tokens, in bfloat16.
            scale: logit scale, positive.

        Returns:
            ``[layers, kv_heads, tokens]`` in float32.
        """
        n = queries.shape[1]
        grouped = self._by_kv_head(queries)
        scores = torch.empty(len(grouped), self._heads, tokens)
        halves = [self._pages[layers].select(3, half) for half in (0, 1)]
        size = len(grouped) * self._heads, self._heads, table.contiguous(), tokens, self._page
        group = grouped.shape[3]
        self._loops(
            "score_window",
            *halves,
            self._strides[2],
            *size,
            self._dim,
            grouped,
            n,
            group,
            float(scale),
            scores,
        )
        return scores

    def demand_by_head(
        self,
        layers: slice,
        table: Tensor,
        tokens: int,
        summaries: Tensor,
        scale: float,
        mass: float,
        capacities: Sequence[int],
    ) -> Tensor:
        """As :func:`growpage.budget.demand.demand_by_head`, of the keys in these pages.

        Args:
            layers: of the cache.
            table: ``[pages]`` page numbers.
            tokens: cached in them.
            summaries: ``[2, layers, query_heads, dim]``.
            scale: logit scale, positive.
            mass: of a working set.
            capacities: for which a loss is wanted.
        """
        grouped = self._by_kv_head(summaries.transpose(0, 1))
        group = grouped.shape[3]
        rows = len(grouped) * self._heads
        needed = torch.empty(rows, 2, group, dtype=torch.long)
        lost = torch.empty(rows, group, len(capacities), dtype=torch.double)
        self._loops(
            "measure_rows",
            self._pages[layers].select(3, 0),
            self._strides[2],
            rows,
            self._heads,
            table.contiguous(),
            tokens,
            self._page,
            self._dim,
            grouped,
            group,
            float(scale),
            float(mass),
            torch.tensor(capacities, dtype=torch.long),
            len(capacities),
            needed,
            lost,
        )
        short, long = needed.double().unbind(1)
        working_sets = torch.stack((short, long, short - long), dim=-1)
        return torch.cat((working_sets, lost), dim=-1).flatten(0, -2)

    def _by_kv_head(self, queries: Tensor) -> Tensor:
        """``[layers, n, query_heads, dim]`` -> ``[layers, kv_heads, n, group, dim]`` in float32."""
        grouped = queries.float().unflatten(2, (self._heads, -1))
        return grouped.transpose(1, 2).contiguous()

    def move(self, source: Tensor, target: Tensor, survivors: Tensor) -> None:
        """Write the survivors among the tokens of ``source`` to ``target``, in place.

        Args:
            source: ``[n]`` page numbers.
            target: ``[m]`` page numbers, such that :func:`in_order` holds.
            survivors: ``[layers, kv_heads, k]`` ascending token indices, of all layers.
        """
        rows = survivors.flatten(0, 1).contiguous()
        for loop, half, numbers, size in (
            ("move_keys", 0, 2, self._dim // 2),
            ("move_values", 1, 4, self._dim // _TILE),
        ):
            self._loops(
                loop,
                self._pages.select(3, half),
                self._strides[numbers],
                len(rows),
                self._heads,
                source.contiguous(),
                target.contiguous(),
                rows,
                rows.shape[1],
                self._page,
                size,
            )

    def _empty(self, layers: slice, rows: int, columns: int) -> Tensor:
        return torch.empty(layers.stop - layers.start, self._heads, rows, columns)


def in_order(source: Sequence[int], target: Sequence[int]) -> bool:
    """Whether survivors can be moved one after the other without overwriting one that is to come.

    Ascending survivors never move back, so it is enough that no target page comes before itself.
    """
    place = {page: index for index, page in enumerate(source)}
    return all(place.get(page, -1) <= index for index, page in enumerate(target))

"""How a page stores its keys and values, per attention kernel.

A page of one KV head holds ``tokens x dim`` keys and as many values. Kernels tile them: each half
is cut into tiles of ``token_tile x dim_tile`` and the four resulting axes are stored in some order.
That is all that differs between the layouts here, so one class reads and writes them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


class LayoutError(RuntimeError):
    """The kernel does not store pages the way any known layout says."""


_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""An integer of so many bytes."""


@dataclass(frozen=True)
class Tiling:
    """Storage order of the keys, or the values, of one page and head.

    The natural ``[tokens, dim]`` is viewed as ``[tokens/t, t, dim/d, d]`` and stored with these
    axes permuted by ``order``.
    """

    token_tile: int = 1
    dim_tile: int = 1
    order: tuple[int, int, int, int] = (0, 1, 2, 3)

    def unpack(self, stored: Tensor, dim: int) -> Tensor:
        """``[..., tokens * dim]`` as stored -> ``[..., tokens, dim]``, a view where possible."""
        word = _WORDS.get(self.dim_tile * stored.itemsize)
        if self.dim_tile > 1 and self.order[-1] == 3 and word is not None:
            # Elements that lie together in either order move as one: some four times as fast.
            words = replace(self, dim_tile=1).unpack(stored.view(word), dim // self.dim_tile)
            return words.contiguous().view(stored.dtype)
        *lead, size = stored.shape
        tokens = size // dim
        natural = self._axes(tokens, dim)
        tiles = stored.view(*lead, *(natural[axis] for axis in self.order))
        inverse = [self.order.index(axis) + len(lead) for axis in range(4)]
        return tiles.permute(*range(len(lead)), *inverse).reshape(*lead, tokens, dim)

    def pack(self, natural: Tensor) -> Tensor:
        """``[..., tokens, dim]`` -> ``[..., tokens * dim]`` as stored."""
        *lead, tokens, dim = natural.shape
        axes = [axis + len(lead) for axis in self.order]
        tiles = natural.reshape(*lead, *self._axes(tokens, dim)).permute(*range(len(lead)), *axes)
        return tiles.reshape(*lead, tokens * dim)

    def fits(self, tokens: int, dim: int) -> bool:
        """Whether a page of this shape can be tiled so."""
        return tokens % self.token_tile == 0 and dim % self.dim_tile == 0

    def _axes(self, tokens: int, dim: int) -> tuple[int, int, int, int]:
        return tokens // self.token_tile, self.token_tile, dim // self.dim_tile, self.dim_tile


@dataclass(frozen=True)
class PageLayout:
    """The storage order of a whole page."""

    name: str
    keys: Tiling
    values: Tiling


NATURAL = Tiling()
TRANSPOSED = Tiling(order=(2, 3, 0, 1))

LAYOUTS = {
    layout.name: layout
    for layout in (
        PageLayout("amx", Tiling(16, 2, (0, 2, 1, 3)), Tiling(2, 16, (2, 0, 3, 1))),
        PageLayout("vec", TRANSPOSED, NATURAL),
        PageLayout("vec16", TRANSPOSED, NATURAL),
    )
}
"""The layouts of vLLM's CPU attention kernels, by the kernel's own name for its instruction set."""

WritePage = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Stores natural keys and values ``[tokens, dim]`` in one page through the real kernel and returns
both halves as stored, ``[tokens * dim]`` each."""

_DIGIT = 8  # every integer below it is exact in all dtypes, even with the two bits of an e5m2


def probe_layout(
    name: str, tokens: int, dim: int, dtype: torch.dtype, write: WritePage
) -> PageLayout:
    """The layout called ``name``, once the real kernel has been seen to store a page in it.

    Numbers all elements of a page, writes them digit by digit (so that they are exact in any
    dtype), and compares every stored element with the layout's claim.

    Raises:
        LayoutError: no such layout, or the kernel stores pages otherwise.
    """
    layout = LAYOUTS.get(name)
    if layout is None:
        raise LayoutError(
            f"the attention kernel {name!r} stores pages in a layout that growpage does not know; "
            f"known are {', '.join(LAYOUTS)}"
        )
    if not (layout.keys.fits(tokens, dim) and layout.values.fits(tokens, dim)):
        raise LayoutError(
            f"pages of {tokens} tokens and head size {dim} cannot be tiled as {name!r}"
        )
    numbers = torch.arange(1, tokens * dim + 1).view(tokens, dim)
    place = 1
    while place <= numbers.numel():
        digits = (numbers // place % _DIGIT).to(dtype)
        stored = write(digits, digits)
        for half, tiling, kept in zip(
            ("keys", "values"), (layout.keys, layout.values), stored, strict=True
        ):
            if not torch.equal(kept.flatten(), tiling.pack(digits)):
                raise LayoutError(
                    f"the attention kernel {name!r} stores {half} otherwise than growpage expects "
                    f"(page of {tokens} tokens, head size {dim}, {dtype}); report this CPU"
                )
        place *= _DIGIT
    return layout

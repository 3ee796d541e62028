"""Paged caches in every memory order that vLLM has."""

from __future__ import annotations

import torch
from torch import Tensor

LAYOUTS = {
    "LBHNC": (0, 1, 2, 3, 4),  # HND
    "LBNHC": (0, 1, 3, 2, 4),  # NHD
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
"""Outermost axis first, of the logical ``[layers, pages, kv_heads, page_tokens, 2 * dim]``."""


def laid_out(cache: Tensor, layout: str) -> Tensor:
    """The same numbers, with the axes in memory as ``layout`` says."""
    order = LAYOUTS[layout]
    inverse = [order.index(axis) for axis in range(5)]
    return cache.permute(order).contiguous().permute(inverse)


def noise(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Any bit patterns: NaNs with payloads, infinities, denormals, both zeros."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8, generator=generator
    ).view(dtype)


def bits(values: Tensor) -> Tensor:
    """NaN equals itself, and zero is not minus zero."""
    return values.contiguous().view(torch.uint8)

"""Finding out how this machine's CPU kernel stores a page, by letting it store one."""

from __future__ import annotations

import torch
from torch import Tensor
from vllm import _custom_ops as ops

from growpage.kvcache.layout import PageLayout, probe_layout


def cpu_page_layout(isa: str, tokens: int, dim: int, dtype: torch.dtype) -> PageLayout:
    """The layout of pages of ``tokens`` tokens and head size ``dim`` under kernel ``isa``.

    Raises:
        LayoutError: the kernel does not store pages in any way that is known.
    """

    def write(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        # Two pages and the second one written, so that a wrong page stride shows as well.
        cache = torch.zeros(2, 1, 2 * tokens, dim, dtype=dtype)
        key_cache, value_cache = cache.chunk(2, dim=2)
        slots = torch.arange(tokens, 2 * tokens)
        ops.cpu_attn_reshape_and_cache(
            keys.unsqueeze(1), values.unsqueeze(1), key_cache, value_cache, slots, isa
        )
        return key_cache[1, 0], value_cache[1, 0]

    return probe_layout(isa, tokens, dim, dtype, write)

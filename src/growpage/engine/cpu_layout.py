"""The cache of vLLM's CPU attention, and how this machine's kernel stores a page of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops

from growpage.kvcache.layout import PageLayout, probe_layout
from growpage.kvcache.paged import PagedCache, stack_layers


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


def cpu_paged_cache(layers: Sequence[Any], tokens: int) -> PagedCache:
    """The cache of vLLM's CPU attention ``layers``, with pages of ``tokens`` tokens.

    Raises:
        LayoutError: the kernel does not store pages in any way that is known.
    """
    dim = layers[0].head_size
    cache = stack_layers([layer.kv_cache for layer in layers])
    layout = cpu_page_layout(layers[0].isa, tokens, dim, cache.dtype)
    return PagedCache(cache.view(*cache.shape[:3], 2, tokens * dim), layout, dim)

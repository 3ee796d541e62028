"""The cache of vLLM's CPU attention, and how this machine's kernel stores a page of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops

from growpage.kvcache.eight_bit import EightBitFloats
from growpage.kvcache.layout import PageLayout, probe_layout
from growpage.kvcache.paged import PagedCache, stack_layers

EIGHT_BIT_DTYPES = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""What the bytes of a cache are, by vLLM's name for it."""

_SCALES = (0.5, 2.0)  # powers of two, so that dividing by them is exact


def cpu_page_layout(
    isa: str, tokens: int, dim: int, dtype: torch.dtype, cache_dtype: str = "auto"
) -> PageLayout:
    """The layout of pages of ``tokens`` tokens and head size ``dim`` under kernel ``isa``.

    ``dtype`` is that of the keys and values, ``cache_dtype`` is vLLM's name for what is stored of
    them: a name in :data:`EIGHT_BIT_DTYPES`, or any other for ``dtype`` itself.

    Raises:
        LayoutError: the kernel does not store pages in any way that is known. For 8-bit pages also
            if what it stores is not the number divided by the scale.
    """
    stored_dtype = EIGHT_BIT_DTYPES.get(cache_dtype, dtype)
    key_scale, value_scale = _SCALES if cache_dtype in EIGHT_BIT_DTYPES else (1.0, 1.0)

    def write(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        # Two pages and the second one written, so that a wrong page stride shows as well.
        cache = torch.zeros(2, 1, 2 * tokens, dim * stored_dtype.itemsize, dtype=torch.uint8)
        if cache_dtype not in EIGHT_BIT_DTYPES:
            cache = cache.view(stored_dtype)  # the kernel takes 8-bit floats as plain bytes
        key_cache, value_cache = cache.chunk(2, dim=2)
        slots = torch.arange(tokens, 2 * tokens)
        ops.cpu_attn_reshape_and_cache(
            (keys * key_scale).unsqueeze(1),
            (values * value_scale).unsqueeze(1),
            key_cache,
            value_cache,
            slots,
            isa,
            k_scale=key_scale,
            v_scale=value_scale,
            kv_cache_dtype=cache_dtype,
        )
        stored = cache.view(stored_dtype).to(dtype)
        halves = stored.chunk(2, dim=2)
        return halves[0][1, 0], halves[1][1, 0]

    return probe_layout(isa, tokens, dim, dtype, write)


def cpu_paged_cache(layers: Sequence[Any], tokens: int) -> PagedCache:
    """The cache of vLLM's CPU attention ``layers``, with pages of ``tokens`` tokens.

    Raises:
        LayoutError: the kernel does not store pages in any way that is known.
    """
    dim = layers[0].head_size
    cache = stack_layers([layer.kv_cache for layer in layers])
    cache_dtype = layers[0].kv_cache_dtype
    codes = None
    dtype = cache.dtype
    if cache_dtype in EIGHT_BIT_DTYPES:
        dtype = layers[0].dtype  # the cache's own is that of plain bytes
        codes = EightBitFloats(
            EIGHT_BIT_DTYPES[cache_dtype],
            [layer._k_scale_float for layer in layers],
            [layer._v_scale_float for layer in layers],
        )
    layout = cpu_page_layout(layers[0].isa, tokens, dim, dtype, cache_dtype)
    return PagedCache(cache.view(*cache.shape[:3], 2, tokens * dim), layout, dim, codes)

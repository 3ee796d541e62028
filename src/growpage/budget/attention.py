"""Attention of a few queries over cached keys, the input of every score and measurement."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_weights(
    queries: Tensor,
    keys: Tensor,
    scale: float,
    *,
    causal: bool = False,
    lengths: Tensor | None = None,
) -> Tensor:
    """Softmax attention under grouped-query attention.

    Args:
        queries: ``[..., n, query_heads, dim]``, rotated to the position they look from.
        keys: ``[..., kv_heads, tokens, dim]``, rotated as they are cached.
        scale: what logits are multiplied by, usually ``dim ** -0.5``.
        causal: the queries are those of the last ``n`` keys, and do not see keys after their own.
        lengths: ``[...]`` keys that there are; the rest are padding, and may be anything. By
            default all are.

    Returns:
        ``[..., kv_heads, n, group, tokens]`` in float32, with ``group`` the query heads that share
        a KV head.
    """
    *lead, n, query_heads, dim = queries.shape
    kv_heads = keys.shape[-3]
    group = query_heads // kv_heads
    grouped = queries.float().reshape(*lead, n, kv_heads, group, dim).transpose(-4, -3)
    logits = grouped.reshape(*lead, kv_heads, n * group, dim) @ keys.float().transpose(-1, -2)
    logits = logits.mul_(scale).view(*lead, kv_heads, n, group, keys.shape[-2])
    if causal:
        later = torch.ones(n, n, dtype=torch.bool, device=logits.device).triu_(1)
        logits[..., -n:].masked_fill_(later.unsqueeze(1), -torch.inf)
    if lengths is not None:
        padding = torch.arange(keys.shape[-2], device=logits.device) >= lengths.unsqueeze(-1)
        logits.masked_fill_(padding[..., None, None, None, :], -torch.inf)
    return torch.softmax(logits, dim=-1)

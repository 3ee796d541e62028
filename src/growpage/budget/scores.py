"""Eviction scores: one small function each; the tokens with the lowest scores go first.

Every score sees one request's whole cache in some layers and returns
``[layers, kv_heads, tokens]``. To add one, write the function and name it in :data:`SCORES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from growpage.budget.attention import attention_weights


@dataclass(frozen=True)
class CacheView:
    """One request's cache in some layers, and what is remembered of its queries there."""

    keys: Tensor
    """``[layers, kv_heads, tokens, dim]``, rotated as cached."""
    values: Tensor
    """``[layers, kv_heads, tokens, dim]``."""
    scale: float
    """Logit scale."""
    window: Tensor | None = None
    """``[layers, n, query_heads, dim]``: the queries of the last ``n`` tokens."""
    summaries: Tensor | None = None
    """``[2, layers, query_heads, dim]``: both averages, rotated to the current position."""
    seed: int = 0
    """Differs between requests, layers and evictions."""


Score = Callable[[CacheView], Tensor]


def window(view: CacheView) -> Tensor:
    """Attention of the last real queries, largest of the GQA group, times the value norm."""
    assert view.window is not None
    weights = attention_weights(view.window, view.keys, view.scale, causal=True)
    return weights.amax(dim=-2).mean(dim=-2) * _value_norm(view)


def summary(view: CacheView) -> Tensor:
    """Attention of both averages, the larger one and largest of the group, times the value norm."""
    assert view.summaries is not None
    weights = attention_weights(view.summaries.transpose(0, 1), view.keys, view.scale)
    return weights.amax(dim=(-3, -2)) * _value_norm(view)


def streaming(view: CacheView) -> Tensor:
    """The later the better: with the sinks always kept, this is StreamingLLM."""
    layers, heads, tokens, _ = view.keys.shape
    return torch.arange(tokens, dtype=torch.float32).expand(layers, heads, tokens)


def random(view: CacheView) -> Tensor:
    """No signal at all. With the prompt kept, a strong baseline."""
    generator = torch.Generator().manual_seed(view.seed)
    return torch.rand(view.keys.shape[:-1], generator=generator)


SCORES: dict[str, Score] = {
    "window": window,
    "summary": summary,
    "streaming": streaming,
    "random": random,
}


def _value_norm(view: CacheView) -> Tensor:
    return view.values.float().norm(dim=-1)

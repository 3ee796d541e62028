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

IMPORTANCE_SHARE = 0.1
"""Weight of attention in the score `diversity`; redundancy has the rest. R-KV's choice."""

ALIKE = 0.5
"""Cosine similarity above which one key can stand for another. R-KV's choice."""

MOST_PAIRS = 4 << 20
"""Pairs of keys that are compared at once."""


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
    return window_mass(view) * _value_norm(view)


def window_mass(view: CacheView) -> Tensor:
    """As :func:`window`, without the value norm: shows what the norm is worth."""
    return _window_attention(view).amax(dim=-2).mean(dim=-2)


def output_error(view: CacheView) -> Tensor:
    """How far the attention output moves if this token alone is dropped.

    Without token ``i``, of weight ``w_i``, the output ``o`` of a query becomes that of the others
    and moves by ``w_i / (1 - w_i) * |v_i - o|``. Of the last real queries, largest of the GQA
    group.
    """
    weights = _window_attention(view)
    values = view.values.float()
    # Distances do not change with the origin; near the values' mean they lose the fewest digits.
    values = (values - values.mean(dim=-2, keepdim=True))[:, :, None]
    squares = values.square().sum(dim=-1).unsqueeze(-2)
    outputs = weights @ values
    distance = squares - 2 * outputs @ values.mT + outputs.square().sum(dim=-1, keepdim=True)
    others = (1 - weights).clamp_(min=torch.finfo(weights.dtype).eps)
    error = weights / others * distance.clamp_(min=0).sqrt()
    # The exact error lies below it; what rounding makes of a weight near 1 need not.
    farthest = 2 * squares.amax(dim=-1, keepdim=True).sqrt()
    return torch.minimum(error, weights * farthest).amax(dim=-2).mean(dim=-2)


def diversity(view: CacheView) -> Tensor:
    """Attention less redundancy, as R-KV weighs them (Cai et al. 2025, arXiv 2505.24133).

    A token is redundant if its key resembles many others. The attention is that of
    :func:`window_mass`, where R-KV smooths it over neighbours and averages over the group.
    """
    redundancy = key_redundancy(view.keys).softmax(dim=-1)
    return IMPORTANCE_SHARE * window_mass(view) - (1 - IMPORTANCE_SHARE) * redundancy


def summary(view: CacheView) -> Tensor:
    """Attention of both averages, the larger one and largest of the group, times the value norm."""
    return _summary_attention(view) * _value_norm(view)


def both(view: CacheView) -> Tensor:
    """The larger of the attention in `window` and in `summary`, times the value norm."""
    return torch.maximum(window_mass(view), _summary_attention(view)) * _value_norm(view)


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
    "window_mass": window_mass,
    "output_error": output_error,
    "diversity": diversity,
    "summary": summary,
    "both": both,
    "streaming": streaming,
    "random": random,
}


def key_redundancy(keys: Tensor) -> Tensor:
    """Mean cosine similarity of each key to all others, but for one that is to stand for it.

    That one, the last that is more similar than :data:`ALIKE`, counts as 0: of a pair that nothing
    else resembles neither is redundant.

    Args:
        keys: ``[layers, kv_heads, tokens, dim]``.

    Returns:
        ``[layers, kv_heads, tokens]``, from -1 to 1.
    """
    unit = torch.nn.functional.normalize(keys.float(), dim=-1)
    layers, heads, tokens, _ = unit.shape
    places = torch.arange(tokens, device=keys.device)
    rows_at_once = max(1, MOST_PAIRS // (layers * heads * tokens))
    means = []
    for rows in places.split(rows_at_once):
        similarity = unit[:, :, rows] @ unit.mT
        similarity[..., torch.arange(len(rows), device=keys.device), rows] = 0  # to itself
        last = torch.where(similarity > ALIKE, places, 0).amax(dim=-1, keepdim=True)
        stand_in = similarity.gather(-1, last)
        spared = torch.where(stand_in > ALIKE, stand_in, 0).squeeze(-1)
        means.append((similarity.sum(dim=-1) - spared) / tokens)
    return torch.cat(means, dim=-1)


def _window_attention(view: CacheView) -> Tensor:
    """``[layers, kv_heads, n, group, tokens]``."""
    assert view.window is not None
    return attention_weights(view.window, view.keys, view.scale, causal=True)


def _summary_attention(view: CacheView) -> Tensor:
    """The larger of both averages', largest of the group."""
    assert view.summaries is not None
    weights = attention_weights(view.summaries.transpose(0, 1), view.keys, view.scale)
    return weights.amax(dim=(-3, -2))


def _value_norm(view: CacheView) -> Tensor:
    return view.values.float().norm(dim=-1)

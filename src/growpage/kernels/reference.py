"""What the kernels must compute, in plain torch: the definitions of :mod:`growpage.budget`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from growpage.budget.rope import Rotary
from growpage.budget.scores import CacheView, window
from growpage.budget.summaries import QuerySummaries
from growpage.budget.working_set import best_mass, keys_needed


def update_averages(
    average: Tensor,
    queries: Tensor,
    rows: Tensor,
    slots: Tensor,
    positions: Tensor,
    rotary: Rotary,
    betas: Sequence[float],
) -> Tensor:
    """What :func:`growpage.kernels.averages.update_averages` makes of ``average``."""
    count, _, layers, heads, dim = average.shape
    summaries = QuerySummaries(count, layers, heads, dim, betas=betas, device=average.device)
    summaries.average.copy_(average)
    plain = rotary.unrotate(queries[:, rows].transpose(0, 1), positions.view(-1, 1, 1))
    for slot, query in zip(slots.tolist(), plain.unsqueeze(1), strict=True):
        summaries.note(np.array([slot]))
        summaries.take_in(slot, query)
    return summaries.average


def working_sets(
    attention: Tensor, mass: float, capacities: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """What :func:`growpage.kernels.working_set.working_sets` returns."""
    held = best_mass(attention)
    at = torch.tensor(capacities, dtype=torch.int64, device=attention.device) - 1
    return keys_needed(held, mass), (1 - held[..., at]).clamp_(min=0)


def window_scores(
    queries: Tensor, cache: Tensor, table: Tensor, tokens: int, scale: float
) -> Tensor:
    """What :func:`growpage.kernels.window_scores.window_scores` returns."""
    natural = cache[:, table].transpose(1, 2).flatten(2, 3)[:, :, :tokens]
    keys, values = natural.chunk(2, dim=-1)
    return window(CacheView(keys=keys, values=values, scale=scale, window=queries))


def compact(
    cache: Tensor, survivors: Tensor, source: Sequence[int], target: Sequence[int]
) -> Tensor:
    """What :func:`growpage.kernels.compaction.compact` makes of ``cache``."""
    layers, pages, kv_heads, page_tokens, _ = cache.shape
    # As bytes: torch's gather of 16-bit floats rewrites NaNs.
    result = cache.contiguous().view(torch.uint8)
    slots = result.transpose(1, 2).reshape(layers, kv_heads, pages * page_tokens, -1)
    old, new = (
        (torch.tensor(table, device=cache.device).view(-1, 1) * page_tokens + offsets).flatten()
        for offsets in [torch.arange(page_tokens, device=cache.device)]
        for table in (source, target)
    )
    where = old[survivors].unsqueeze(-1).expand(-1, -1, -1, slots.shape[-1])
    moved = slots.gather(2, where)
    slots = slots.clone()
    slots[:, :, new[: survivors.shape[-1]]] = moved
    natural = slots.view(layers, kv_heads, pages, page_tokens, -1).transpose(1, 2)
    return natural.contiguous().view(cache.dtype)

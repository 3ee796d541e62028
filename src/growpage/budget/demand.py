"""The demand signal: how wide a request's working set is, recently and in the long run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from growpage.budget.attention import attention_weights
from growpage.budget.summaries import LONG, SHORT
from growpage.budget.working_set import best_mass, keys_needed
from growpage.compiled import Loops, loops

WORKING_SETS = 3
"""Columns of :func:`demand_by_head` that are sizes of working sets; all others are losses."""


@dataclass(frozen=True)
class Demand:
    """A measurement at a capacity boundary, in tokens, one figure for all layers and query heads.

    Of working sets their mean, or another that :mod:`growpage.budget.over_heads` makes of them; of
    losses always the mean, which is what a compression costs the layers and heads together.
    """

    short: float
    """``D_p`` of the short summary."""
    long: float
    """``D_p`` of the long summary."""
    cached: int
    """Keys that were measured over."""
    losses: tuple[float, ...] = ()
    """Mass of the short summary's attention that the best keys miss if 1, 2, ... pages fewer are
    kept; empty if there is no page to spare."""
    entropy: float | None = None
    """LTS (:mod:`growpage.budget.entropy`), in nats; none if it is not tracked."""
    density: float | None = None
    """Density of STS, from 1/8 to 1; none if it is not tracked."""
    difference: float | None = None
    """``D_p(short) - D_p(long)`` head by head, then one figure; none if that is ``short - long``,
    as it is for means."""

    @property
    def delta(self) -> float:
        """``D_p(short) - D_p(long)``: positive when attention has recently become wider."""
        return self.short - self.long if self.difference is None else self.difference

    def loss_at(self, survivors: int, page: int) -> float | None:
        """The predicted loss of keeping ``survivors`` keys, in whole pages of ``page`` fewer.

        None if it was not measured for as few.
        """
        fewer = -((survivors - self.cached) // page)
        return self.losses[fewer - 1] if 1 <= fewer <= len(self.losses) else None

    @property
    def is_finite(self) -> bool:
        """Whether it can be decided by; if not, the keys or queries were not finite."""
        optional = (self.entropy, self.density, self.difference)
        there = (each for each in optional if each is not None)
        return all(map(isfinite, (self.short, self.long, *self.losses, *there)))


def at_equal_norm(summaries: Tensor) -> Tensor:
    """Both averages ``[2, ..., dim]``, the long one at the norm of the short one."""
    norms = summaries.norm(dim=-1, keepdim=True).clamp_(min=torch.finfo(summaries.dtype).tiny)
    return summaries * (norms[SHORT] / norms)


def demand_by_head(
    summaries: Tensor, keys: Tensor, scale: float, mass: float, capacities: Sequence[int]
) -> Tensor:
    """What becomes a :class:`Demand`, of each query head of some layers.

    Args:
        summaries: ``[2, layers, query_heads, dim]``, rotated to the current position.
        keys: ``[layers, kv_heads, tokens, dim]``.
        scale: logit scale.
        mass: ``p``.
        capacities: how many of the best keys a loss is wanted for, each from 1 to ``tokens``.

    Returns:
        ``[layers * query_heads, WORKING_SETS + len(capacities)]``: ``D_p`` of the short and of the
        long summary, their difference, then the short one's mass that lies outside so many keys.
    """
    weights = attention_weights(summaries.transpose(0, 1), keys, scale)
    compiled = loops() if weights.device.type == "cpu" else None
    if compiled is not None:
        return _without_sorting(compiled, weights, mass, capacities)
    return by_sorting(weights, mass, capacities)


def by_sorting(weights: Tensor, mass: float, capacities: Sequence[int]) -> Tensor:
    """:func:`demand_by_head` of ``weights [layers, kv_heads, 2, group, tokens]``, on any device."""
    held = best_mass(weights)  # both figures come from it
    sizes = keys_needed(held, mass).double()
    short, long = sizes[:, :, SHORT], sizes[:, :, LONG]
    at = torch.tensor(capacities, dtype=torch.long, device=held.device) - 1
    lost = (1 - held[:, :, SHORT][..., at]).clamp_(min=0)
    working_sets = torch.stack((short, long, short - long), dim=-1)
    return torch.cat((working_sets, lost), dim=-1).flatten(0, -2)


def _without_sorting(
    compiled: Loops, weights: Tensor, mass: float, capacities: Sequence[int]
) -> Tensor:
    """As :func:`by_sorting`, on the CPU."""
    tokens = weights.shape[-1]
    rows = weights.movedim(2, 0).reshape(-1, tokens).contiguous()  # the short summary's first
    heads = len(rows) // 2
    needed = torch.empty(len(rows), dtype=torch.long)
    lost = torch.empty(heads, len(capacities), dtype=torch.double)
    sizes = torch.tensor(capacities, dtype=torch.long)
    asked = float(mass), sizes, len(capacities), heads
    compiled("count_and_lose", rows, len(rows), tokens, *asked, needed, lost)
    both = needed.view(2, heads).double()
    short, long = both[SHORT], both[LONG]
    return torch.cat((torch.stack((short, long, short - long), dim=-1), lost), dim=-1)

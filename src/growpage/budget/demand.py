"""The demand signal: how wide a request's working set is, recently and in the long run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from growpage.budget.attention import attention_weights
from growpage.budget.summaries import LONG, SHORT
from growpage.budget.working_set import working_set_size


@dataclass(frozen=True)
class Demand:
    """A measurement at a capacity boundary, in tokens, averaged over layers and query heads."""

    short: float
    """``D_p`` of the short summary."""
    long: float
    """``D_p`` of the long summary."""
    cached: int
    """Keys that were measured over."""
    losses: tuple[float, ...] = ()
    """Mass of the short summary's attention that the best keys miss if 1, 2, ... pages fewer are
    kept; empty if it was not asked for."""

    @property
    def delta(self) -> float:
        """``D_p(short) - D_p(long)``: positive when attention has recently become wider."""
        return self.short - self.long

    def loss_at(self, survivors: int, page: int) -> float | None:
        """The predicted loss of keeping ``survivors`` keys, in whole pages of ``page`` fewer.

        None if it was not measured for as few.
        """
        fewer = -((survivors - self.cached) // page)
        return self.losses[fewer - 1] if 1 <= fewer <= len(self.losses) else None

    @property
    def is_finite(self) -> bool:
        """Whether it can be decided by; if not, the keys or queries were not finite."""
        return all(map(isfinite, (self.short, self.long, *self.losses)))


def working_set_sums(summaries: Tensor, keys: Tensor, scale: float, mass: float) -> Tensor:
    """Sum of ``D_p`` over some layers and all their query heads, for both summaries: ``[2]``.

    Args:
        summaries: ``[2, layers, query_heads, dim]``, rotated to the current position.
        keys: ``[layers, kv_heads, tokens, dim]``.
        scale: logit scale.
        mass: ``p``.
    """
    weights = attention_weights(summaries.transpose(0, 1), keys, scale)
    sizes = working_set_size(weights, mass)  # [layers, kv_heads, 2, group]
    sums = sizes.sum(dim=(0, 1, 3))
    return sums[[SHORT, LONG]]


def lost_mass_sums(
    summaries: Tensor, keys: Tensor, scale: float, capacities: Sequence[int]
) -> Tensor:
    """Sum over layers and query heads of the short summary's mass outside its best keys.

    Args:
        summaries: as for :func:`working_set_sums`.
        keys: as for :func:`working_set_sums`.
        scale: logit scale.
        capacities: how many keys are kept, each from 1 to ``tokens``.

    Returns:
        ``[len(capacities)]``, each between 0 and ``layers * query_heads``.
    """
    weights = attention_weights(summaries[SHORT].unsqueeze(1), keys, scale)
    held = weights.sort(dim=-1, descending=True).values.double().cumsum(dim=-1)
    at = torch.tensor(capacities, device=held.device) - 1
    return (1 - held[..., at]).clamp_(min=0).flatten(0, -2).sum(dim=0)

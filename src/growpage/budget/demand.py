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
    kept; empty if there is no page to spare."""
    entropy: float | None = None
    """LTS (:mod:`growpage.budget.entropy`), in nats; none if it is not tracked."""
    density: float | None = None
    """Density of STS, from 1/8 to 1; none if it is not tracked."""

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
        tracked = (each for each in (self.entropy, self.density) if each is not None)
        return all(map(isfinite, (self.short, self.long, *self.losses, *tracked)))


def demand_sums(
    summaries: Tensor, keys: Tensor, scale: float, mass: float, capacities: Sequence[int]
) -> Tensor:
    """What some layers add to a :class:`Demand`, summed over them and all their query heads.

    Args:
        summaries: ``[2, layers, query_heads, dim]``, rotated to the current position.
        keys: ``[layers, kv_heads, tokens, dim]``.
        scale: logit scale.
        mass: ``p``.
        capacities: how many of the best keys a loss is wanted for, each from 1 to ``tokens``.

    Returns:
        ``[2 + len(capacities)]``: ``D_p`` of the short and of the long summary, then the short
        one's mass that lies outside so many keys.
    """
    weights = attention_weights(summaries.transpose(0, 1), keys, scale)
    held = best_mass(weights)  # [layers, kv_heads, 2, group, tokens]; both figures come from it
    sizes = keys_needed(held, mass).sum(dim=(0, 1, 3))
    at = torch.tensor(capacities, dtype=torch.long, device=held.device) - 1
    lost = (1 - held[:, :, SHORT][..., at]).clamp_(min=0).flatten(0, -2).sum(dim=0)
    return torch.cat((sizes[[SHORT, LONG]].double(), lost))

"""Working sets: how many cached tokens an attention distribution needs (paper, Theorem 3.1).

With value norms at most ``v_max``, keeping the set ``S`` of keys and renormalising changes the
attention output by at most ``2 * v_max * (1 - mass(S))``. The smallest set that keeps the error
within ``delta`` therefore holds ``D_p`` tokens with ``p = 1 - delta / (2 * v_max)``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def working_set_size(attention: Tensor, mass: float) -> Tensor:
    """``D_p``: the least number of keys whose weights sum to at least ``mass``.

    Args:
        attention: ``[..., keys]``, non-negative, each row summing to 1 (up to rounding).
        mass: ``p``, from 0 to 1. A row that sums to less than ``p`` needs all its keys.

    Returns:
        ``[...]`` integers from 1 to ``keys``.
    """
    return keys_needed(best_mass(attention), mass)


def best_mass(attention: Tensor) -> Tensor:
    """The mass that the best 1, 2, ... keys of ``attention [..., keys]`` hold: ``[..., keys]``."""
    # In double: a float sum over thousands of keys is wrong by more than small weights are large.
    return attention.sort(dim=-1, descending=True).values.double().cumsum(dim=-1)


def keys_needed(held: Tensor, mass: float) -> Tensor:
    """``D_p`` from what :func:`best_mass` returned: ``[...]`` integers from 1 to ``keys``."""
    return ((held < mass).sum(dim=-1) + 1).clamp_(max=held.shape[-1])


def kept_mass(attention: Tensor, kept: Tensor) -> Tensor:
    """The mass that survives: ``attention [..., keys]``, indices ``kept [..., n]`` -> ``[...]``."""
    rows = torch.broadcast_shapes(attention.shape[:-1], kept.shape[:-1])
    return (
        attention.double()
        .expand(*rows, attention.shape[-1])
        .gather(-1, kept.expand(*rows, kept.shape[-1]))
        .sum(dim=-1)
    )


def worst_case_error(attention: Tensor, kept: Tensor, v_max: float) -> Tensor:
    """Theorem 3.1's bound on the attention-output error of keeping ``kept``: ``[...]``."""
    return 2 * v_max * (1 - kept_mass(attention, kept)).clamp_(min=0)


def sufficient_capacity(attention: Tensor, delta: float, v_max: float) -> Tensor:
    """The least capacity whose worst-case error is at most ``delta``: ``[...]`` token counts."""
    return working_set_size(attention, max(0.0, 1 - delta / (2 * v_max)))

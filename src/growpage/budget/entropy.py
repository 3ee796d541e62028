"""How spread a request's attention is: two summaries of it, for those who watch a server.

The entropy of a decode step is that of its query's attention over the cached keys, in nats, mean
over the query heads of one layer: attention so spread looks at ``exp(entropy)`` keys in effect. One
layer, because every step is looked at, and all layers would cost what a whole measurement does.

STS (short-term summary)
    A histogram of the last 32 steps in 8 bins. Its *density*, the share of the steps in the fullest
    bin, says how settled attention is. A bin is an eighth of the highest entropy that the step
    could have, the logarithm of its keys, so that bins mean the same in a small and a large cache.
LTS (long-term summary)
    The mean over the last 512 steps, in nats, because it is compared with a number of keys, and not
    with the size of the cache: 2.1 nats are 8 keys.

Each keeps one byte a step. A step's bin is exact; its entropy in nats, and so the mean, is off by
at most 1/32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from growpage.budget.attention import attention_weights

SHORT_STEPS = 32
LONG_STEPS = 512
BINS = 8

_SHARE_CODES = 256  # a multiple of the bins, so that a code lies in one of them
_CODES_PER_NAT = 16  # 255 of them reach 15.9 nats, the logarithm of eight million keys
_NOT_FINITE = 255


def attention_entropy(queries: Tensor, keys: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Entropy of each row's attention in nats, mean over its query heads: ``[n]``.

    Args:
        queries: ``[n, query_heads, dim]``, one a row, rotated to its position.
        keys: ``[n, kv_heads, tokens, dim]``, rotated as cached; each row's first ones are its own.
        lengths: ``[n]`` keys of each row, from 1 to ``tokens``. What is beyond may be anything.
        scale: logit scale.
    """
    weights = attention_weights(queries.unsqueeze(1), keys, scale, lengths=lengths)
    return torch.special.entr(weights).sum(dim=-1).flatten(1).mean(dim=1)


class EntropySummaries:
    """STS and LTS of every slot.

    Where a model's heads are on several workers, each keeps the mean over its own. What they read
    is averaged before it is made a density, so that all come to the same.
    """

    def __init__(self, slots: int, *, device: torch.device | str = "cpu") -> None:
        # Rings over steps.
        self._shares = torch.zeros(slots, SHORT_STEPS, dtype=torch.uint8, device=device)
        self._nats = torch.zeros(slots, LONG_STEPS, dtype=torch.uint8, device=device)
        self.count = torch.zeros(slots, dtype=torch.long)

    @property
    def bytes_per_slot(self) -> int:
        """What is kept of a request."""
        return sum(kept[0].nbytes for kept in (self._shares, self._nats, self.count))

    def reset(self, slot: int) -> None:
        """Forget everything about ``slot``."""
        self.count[slot] = 0

    def update(self, slots: Sequence[int], entropy: Tensor, lengths: Tensor) -> None:
        """Take in a step's ``entropy [n]`` over ``lengths [n]`` keys, for ``n`` slots."""
        highest = lengths.log()
        share = torch.where(highest > 0, entropy / highest, 0.0)  # one key: it could not be lower
        steps = self.count[list(slots)].to(entropy.device)
        at = torch.tensor(slots, device=entropy.device)
        # Rounded down, and read as the middle. NaN has no code: the nats speak for both.
        self._shares[at, steps % SHORT_STEPS] = _codes(share.nan_to_num() * _SHARE_CODES, 255)
        self._nats[at, steps % LONG_STEPS] = torch.where(
            entropy.isfinite(), _codes(entropy * _CODES_PER_NAT, _NOT_FINITE - 1), _NOT_FINITE
        )
        self.count[list(slots)] += 1

    def mean(self, slot: int) -> Tensor:
        """LTS of ``slot`` in nats, a scalar; NaN if any step's was, or if it has seen none."""
        codes = self._nats[slot, : int(self.count[slot])]
        nats = (codes.double() + 0.5) / _CODES_PER_NAT
        return torch.where(codes == _NOT_FINITE, torch.nan, nats).mean()

    def shares(self, slot: int) -> Tensor:
        """``[n]`` entropies of the last steps, at most 32 in no order, as shares of the highest."""
        codes = self._shares[slot, : int(self.count[slot])]
        return (codes.double() + 0.5) / _SHARE_CODES


def histogram(shares: Tensor) -> Tensor:
    """STS: how many of ``shares [n]``, each below 1, are in each bin: ``[8]``."""
    return torch.bincount((shares * BINS).long(), minlength=BINS)


def density(shares: Tensor) -> float:
    """The share of ``shares [n]`` in the fullest bin of STS, from 1/8 to 1."""
    return int(histogram(shares).max()) / len(shares)


def _codes(values: Tensor, most: int) -> Tensor:
    """Rounded down to a byte, from 0 to ``most``."""
    return values.clamp(0, most).to(torch.uint8)

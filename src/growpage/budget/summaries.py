"""What is remembered of a request's queries: two moving averages and the last few as they were."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SHORT, LONG = 0, 1


class QuerySummaries:
    """The short and the long average of every slot's decode queries (paper, section 3.1).

    ``average <- (1 - beta) * query + beta * average`` for both decays, read with the bias
    correction ``1 - beta**n``, so that after one query both averages equal it. Queries are after
    query-norm and before RoPE.
    """

    def __init__(
        self,
        slots: int,
        layers: int,
        heads: int,
        dim: int,
        *,
        betas: Sequence[float],
        device: torch.device | str = "cpu",
    ) -> None:
        self.betas = torch.tensor(betas, dtype=torch.float64, device=device)  # [2]: short, long
        self.average = torch.zeros(slots, 2, layers, heads, dim, device=device)
        self.count = torch.zeros(slots, dtype=torch.long)

    def reset(self, slot: int) -> None:
        """Forget everything about ``slot``."""
        self.average[slot] = 0
        self.count[slot] = 0

    def update(self, slots: Tensor, queries: Tensor) -> None:
        """Take a query for each of ``slots [n]``, all different: ``[n, layers, heads, dim]``."""
        weight = (1 - self.betas).float().view(2, 1, 1, 1)
        self.average[slots] = self.average[slots].lerp_(queries.unsqueeze(1).float(), weight)
        self.count[slots] += 1

    def read(self, slot: int) -> Tensor:
        """Both averages of ``slot``, bias-corrected: ``[2, layers, heads, dim]``.

        Raises:
            ValueError: the slot has seen no query, so there is nothing to correct.
        """
        steps = int(self.count[slot])
        if steps == 0:
            raise ValueError(f"slot {slot} has seen no decode query")
        return self.average[slot] / (1 - self.betas**steps).float().view(2, 1, 1, 1)


class QueryWindow:
    """The last ``size`` real queries of every slot, rotated as attention saw them.

    A ring over token positions: the query at position ``t`` lies at ``t % size``. Prompt queries
    count too, so the window is full as soon as a prompt of ``size`` tokens has been computed.
    """

    def __init__(
        self,
        slots: int,
        layers: int,
        heads: int,
        dim: int,
        *,
        size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = size
        self.ring = torch.zeros(layers, slots * size, heads, dim, dtype=dtype, device=device)
        self._seen = [0] * slots
        self._next = [0] * slots

    def reset(self, slot: int) -> None:
        """Forget everything about ``slot``."""
        self._seen[slot] = 0

    def advance(self, slot: int, position: int, tokens: int) -> None:
        """Note that the ring now holds the queries of ``tokens`` tokens up to ``position``."""
        self._seen[slot] += tokens
        self._next[slot] = position + 1

    def read(self, slot: int) -> Tensor:
        """The queries that ``slot`` holds: ``[layers, n, heads, dim]``, ``n`` at most ``size``."""
        held = min(self._seen[slot], self.size)
        end = self._next[slot]
        places = [slot * self.size + position % self.size for position in range(end - held, end)]
        return self.ring[:, places]

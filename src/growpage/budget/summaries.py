"""What is remembered of a request's queries: two moving averages and the last few as they were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

SHORT, LONG = 0, 1


class QuerySummaries:
    """The short and the long average of every slot's decode queries (paper, section 3.1).

    ``average <- (1 - beta) * query + beta * average`` for both decays, read with the bias
    correction ``1 - beta**n``, so that after one query both averages equal it. Queries are after
    query-norm and before RoPE.

    A query may be noted when it is seen and taken in later, together with those that follow it:
    the weights are the same.
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
        self.count = np.zeros(slots, dtype=np.int64)
        """Queries of each slot, those that are only noted among them."""
        self.pending = np.zeros(slots, dtype=np.int64)
        """Queries that are noted and not yet taken in."""

    def reset(self, slot: int) -> None:
        """Forget everything about ``slot``."""
        self.average[slot] = 0
        self.count[slot] = 0
        self.pending[slot] = 0

    def lapse(self, slots: np.ndarray) -> None:
        """Forget ``slots``, which miss queries from now on."""
        for slot in slots[self.count[slots] > 0].tolist():
            self.reset(slot)

    def note(self, slots: np.ndarray) -> None:
        """Each of ``slots [n]``, all different, has one more query to take in."""
        self.count[slots] += 1
        self.pending[slots] += 1

    def take_in(self, slot: int, queries: Tensor) -> None:
        """Take in all queries of ``slot`` that are pending, in order: ``[n, layers, heads, dim]``.

        Raises:
            ValueError: as many are not pending.
        """
        if len(queries) != self.pending[slot]:
            raise ValueError(
                f"slot {slot} has {self.pending[slot]} queries to take in, not {len(queries)}"
            )
        age = torch.arange(len(queries) - 1, -1, -1, device=self.betas.device)
        weights = (1 - self.betas).unsqueeze(1) * self.betas.unsqueeze(1) ** age
        kept = (self.betas ** len(queries)).float().view(2, 1, 1, 1)
        gained = weights.float() @ queries.flatten(1)
        self.average[slot].mul_(kept).add_(gained.view_as(self.average[slot]))
        self.pending[slot] = 0

    def read(self, slot: int) -> Tensor:
        """Both averages of ``slot``, bias-corrected: ``[2, layers, heads, dim]``.

        Raises:
            ValueError: the slot has seen no query, so there is nothing to correct, or some are
                still to be taken in.
        """
        steps = int(self.count[slot])
        if self.pending[slot]:
            raise ValueError(f"slot {slot} has queries to take in")
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
        return self.last(slot, min(self._seen[slot], self.size))[0]

    def last(self, slot: int, n: int) -> tuple[Tensor, range]:
        """The last ``n`` of them, at most those that it holds, and their positions."""
        positions = range(self._next[slot] - n, self._next[slot])
        places = [slot * self.size + position % self.size for position in positions]
        return self.ring[:, places], positions

"""What is remembered of a request's queries: two moving averages and the last few as they were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from growpage.budget.rope import Rotary
from growpage.compiled import loops

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
        self._known_weights: dict[int, tuple[Tensor, Tensor]] = {}

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
        weights, kept = self._weights(len(queries))
        gained = weights @ queries.flatten(1)
        average = self.average[slot]
        average.mul_(kept.view(2, 1, 1, 1)).add_(gained.view_as(average))
        self.pending[slot] = 0

    def take_in_from(self, window: QueryWindow, slot: int, rotary: Rotary) -> None:
        """Take in all queries of ``slot`` that are pending, the last ones that ``window`` holds.

        As :meth:`take_in` does, once they are rotated back by their positions.
        """
        pending = int(self.pending[slot])
        if pending == 0:
            return
        places, positions = window.places(slot, pending)
        where = torch.tensor(positions, device=places.device)
        ring = window.ring
        compiled = loops() if _suits_loops(ring, rotary) else None
        if compiled is None:
            plain = rotary.unrotate(ring[:, places], where.view(-1, 1))
            self.take_in(slot, plain.transpose(0, 1))
            return
        angles = torch.stack(rotary.inverse(where), dim=1)
        weights, kept = self._weights(pending)
        layers, _, heads, dim = ring.shape
        at = ring.element_size(), ring, ring.stride(0), places, pending
        sizes = layers, heads, dim
        compiled("take_in", *at, *sizes, angles, weights, kept, self.average[slot])
        self.pending[slot] = 0

    def _weights(self, n: int) -> tuple[Tensor, Tensor]:
        """What each of ``n`` queries adds to both averages, ``[2, n]``, and what is left of those,
        ``[2]``."""
        if n not in self._known_weights:
            age = torch.arange(n - 1, -1, -1, device=self.betas.device)
            weights = (1 - self.betas).unsqueeze(1) * self.betas.unsqueeze(1) ** age
            self._known_weights[n] = weights.float(), (self.betas**n).float()
        return self._known_weights[n]

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
        self._seen = np.zeros(slots, dtype=np.int64)
        self._next = np.zeros(slots, dtype=np.int64)

    def reset(self, slot: int) -> None:
        """Forget everything about ``slot``."""
        self._seen[slot] = 0

    def advance(
        self, slots: np.ndarray | int, positions: np.ndarray | int, tokens: np.ndarray | int
    ) -> None:
        """Note that the ring now holds the queries of ``tokens`` tokens of each of ``slots``, all
        different, up to ``positions``."""
        self._seen[slots] += tokens
        self._next[slots] = positions + 1

    def held(self, slot: int) -> int:
        """Queries that ``slot`` holds, at most ``size``."""
        return min(int(self._seen[slot]), self.size)

    def read(self, slot: int) -> Tensor:
        """The queries that ``slot`` holds: ``[layers, n, heads, dim]``."""
        return self.ring[:, self.places(slot, self.held(slot))[0]]

    def places(self, slot: int, n: int) -> tuple[Tensor, range]:
        """Where in the ring the last ``n`` queries are, ``[n]``, and their positions.

        Args:
            slot: whose.
            n: at most those that it holds.
        """
        end = int(self._next[slot])
        positions = range(end - n, end)
        places = [slot * self.size + position % self.size for position in positions]
        return torch.tensor(places, dtype=torch.long, device=self.ring.device), positions


def _suits_loops(ring: Tensor, rotary: Rotary) -> bool:
    """Whether queries in ``ring [..., dim]`` are stored and rotated as compiled loops take them."""
    dim = ring.shape[-1]
    return (
        ring.device.type == "cpu"
        and ring.dtype in (torch.bfloat16, torch.float32)
        and rotary.neox
        and rotary.cos_sin.shape[-1] == dim
        and dim % 32 == 0
    )

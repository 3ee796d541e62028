"""One figure for a request out of one for each layer and query head, whichever worker has them.

Each worker knows its own heads only, and workers can do no more than add up what they have; all of
them must come to the same figure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class OverHeads(ABC):
    """What becomes of figures that each layer and query head has its own of.

    Args:
        heads: layers times query heads of one worker.
        worker: which worker this is, from 0.
        workers: how many there are.
    """

    def __init__(self, heads: int, worker: int = 0, workers: int = 1) -> None:
        self.heads = heads
        self.worker = worker
        self.workers = workers

    @abstractmethod
    def share(self, by_head: Tensor) -> Tensor:
        """What this worker adds to the total, in one row, of ``by_head [heads, n]``."""

    @abstractmethod
    def settle(self, total: Tensor) -> Tensor:
        """``[n]`` figures from the sum of all workers' shares."""


class Mean(OverHeads):
    """Every head counts the same."""

    def share(self, by_head: Tensor) -> Tensor:
        """The sums."""
        return by_head.sum(dim=0)

    def settle(self, total: Tensor) -> Tensor:
        """The means."""
        return total / (self.heads * self.workers)


class Quantile90(OverHeads):
    """The figure that a tenth of the heads exceed: the demanding ones decide."""

    def share(self, by_head: Tensor) -> Tensor:
        """The figures themselves at this worker's place, and zeros at all others."""
        places = by_head.new_zeros(self.workers, *by_head.shape)
        places[self.worker] = by_head
        return places.flatten()

    def settle(self, total: Tensor) -> Tensor:
        """The 0.9-quantiles, linear between two heads."""
        by_head = total.view(self.heads * self.workers, -1)
        return torch.quantile(by_head, 0.9, dim=0)


OVER_HEADS: dict[str, type[OverHeads]] = {"mean": Mean, "q90": Quantile90}

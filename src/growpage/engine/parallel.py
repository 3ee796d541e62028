"""The workers that share a model's heads, and what they have to agree on.

Which tokens survive is decided per KV head, so each worker decides alone for the heads that it
holds; where KV heads are replicated, each worker has a copy of its own. Demand is one figure a
request, and every worker must report the same one: the scheduler hears from one of them only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed
from torch import Tensor
from vllm.distributed.parallel_state import get_tp_group


@dataclass(frozen=True)
class TensorParallel:
    """The tensor-parallel workers; by default this one alone."""

    size: int = 1
    group: torch.distributed.ProcessGroup | None = None
    rank: int = 0
    """Which of them this one is."""

    @classmethod
    def of_vllm(cls) -> TensorParallel:
        """The group that this worker belongs to."""
        group = get_tp_group()
        return cls(group.world_size, group.device_group, group.rank_in_group)

    def total(self, sums: Tensor) -> Tensor:
        """The sum of every worker's ``sums``, in place; all must call it, in the same order."""
        if self.size > 1:
            # Not vLLM's all_reduce, whose shared-memory kernel on the CPU takes no integers.
            torch.distributed.all_reduce(sums, group=self.group)
        return sums

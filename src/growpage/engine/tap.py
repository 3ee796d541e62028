"""Query capture: one copy a layer and step, straight into the query windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


class Tap(Protocol):
    """Sees the queries of one layer."""

    def record(self, query: Tensor) -> None:
        """Look at the step's ``query [tokens, heads, dim]``, after RoPE."""


@dataclass
class Probe:
    """Keeps the query of one token, to try the model's rotation on."""

    query: Tensor = field(default_factory=lambda: torch.empty(0))
    """``[heads, dim]``."""

    def record(self, query: Tensor) -> None:
        """Keep the first token's query."""
        self.query = query[0].clone()


@dataclass
class CaptureStep:
    """Which queries of the step are kept, and where; shared by all layers' taps.

    ``targets`` is none outside a step, as in a warm-up, so that nothing is captured then.
    """

    targets: Tensor | None = None
    """``[n]`` places in the ring."""
    count: int = 0
    """``n``."""
    rows: Tensor | None = None
    """``[n]`` rows of the query; none for the first ``n``, as in a step of decodes only."""


@dataclass(frozen=True)
class QueryTap:
    """Copies one layer's queries."""

    step: CaptureStep
    ring: Tensor
    """``[slots * window, heads, dim]``: the layer's part of the query windows."""

    def record(self, query: Tensor) -> None:
        """Keep the step's queries of ``query [tokens, heads, dim]``."""
        step = self.step
        if step.targets is None:
            return
        kept = query[: step.count] if step.rows is None else query.index_select(0, step.rows)
        self.ring.index_copy_(0, step.targets, kept.view(-1, *self.ring.shape[1:]))

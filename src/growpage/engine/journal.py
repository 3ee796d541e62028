"""What was decided, request by request: counted, kept for a while, and told to the debug log."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from typing import Literal

from vllm.logger import init_logger

from growpage.budget.demand import Demand
from growpage.budget.rollout import Mode
from growpage.engine.ledger import Ledger
from growpage.engine.observations import Observations
from growpage.telemetry.snapshot import DecisionState

logger = init_logger(f"vllm.{__name__}")

KEPT = 200
"""Decisions that are kept for the live page."""


class Journal:
    """Takes down the decisions of one mode.

    Args:
        mode: whether they are carried out.
        observations: takes the predicted losses.
    """

    def __init__(self, mode: Mode, observations: Observations) -> None:
        self.mode: Mode = mode
        self.ledger = Ledger()
        self.recent: deque[DecisionState] = deque(maxlen=KEPT)
        self._observations = observations

    def grown(self, request_id: str, reason: str, before: int, demand: Demand | None) -> None:
        """A request may take one capacity step more."""
        self.ledger.growths_by_reason[reason] += 1
        self._note(request_id, "grow", reason, before, before + 1, demand)

    def refused(self, request_id: str, reason: str, held: int, evicts: bool) -> None:
        """A request was to grow and may not: it is compressed, unless nothing can be evicted."""
        self.ledger.refused_by_reason[reason] += 1
        if not evicts:
            self._note(request_id, "refuse", reason, held, held, None)

    def compressed(
        self,
        request_id: str,
        reason: str,
        before: int,
        after: int,
        *,
        evicted: int,
        demand: Demand | None,
        loss: float | None,
    ) -> None:
        """A request loses ``evicted`` tokens."""
        self.ledger.by_reason[reason] += 1
        self.ledger.evicted_tokens += evicted
        if loss is not None:
            self._observations.observe("growpage_predicted_loss", loss, self.mode)
        self._note(request_id, "compress", reason, before, after, demand, evicted, loss)

    def _note(
        self,
        request_id: str,
        action: Literal["grow", "compress", "refuse"],
        reason: str,
        before: int,
        after: int,
        demand: Demand | None,
        evicted: int = 0,
        loss: float | None = None,
    ) -> None:
        decision = DecisionState(
            time=time.time(),
            request=request_id,
            mode=self.mode,
            action=action,
            reason=reason,
            before=before,
            after=after,
            evicted=evicted,
            delta=demand.delta if demand else None,
            loss=loss,
        )
        self.recent.append(decision)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("growpage decision %s", json.dumps(decision))

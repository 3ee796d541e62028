"""A watch over the worker: compactions that are never carried out must not go unseen."""

from __future__ import annotations

from vllm.logger import init_logger

from growpage.engine.messages import StepAnswer

logger = init_logger(__name__)

PATIENCE = 8
"""Steps under pressure after which an acknowledgement will not come; some may be in flight."""


class CompactionWatch:
    """Warns once if requests are short of pages and no worker has compacted anything.

    Args:
        worker: the worker's class, named where no runner has answered.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._runner: str | None = None
        self._planned = 0
        self._preempted = 0
        self._steps = 0
        self._warned = False
        self.acknowledged = False

    def preempted(self) -> None:
        """A request has lost its pages although the policy compresses."""
        self._preempted += 1

    def settled(self, planned: int, answer: StepAnswer | None) -> None:
        """A step with ``planned`` compactions has come back, with the worker's answer if any."""
        if self.acknowledged or self._warned:
            return
        if answer is not None:
            self._runner = answer.runner
            self.acknowledged = answer.compactions > 0
        self._planned += planned
        if self.acknowledged or not (self._planned or self._preempted):
            return
        self._steps += 1
        if self._steps >= PATIENCE:
            self._warned = True
            logger.warning(
                "growpage has planned %d compactions and seen %d preemptions, but %s has carried "
                "out no compaction; make sure that nothing replaces growpage's --worker-cls or its "
                "model runner",
                self._planned,
                self._preempted,
                self._runner or f"the model runner of {self._worker}, which never answers,",
            )

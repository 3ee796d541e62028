"""Writes down what an engine holds, for the live page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm.logger import init_logger
from vllm.utils.math_utils import cdiv
from vllm.v1.request import Request

from growpage.budget.rollout import Mode
from growpage.engine.accounts import Account
from growpage.engine.journal import Journal
from growpage.engine.manager import GrowPageManager
from growpage.engine.pace import Pace
from growpage.engine.reporter import EngineFacts
from growpage.telemetry.feed import write_snapshot
from growpage.telemetry.snapshot import DecisionState, RequestState, Snapshot

logger = init_logger(f"vllm.{__name__}")

INTERVAL_S = 0.5
"""Seconds between two snapshots of a busy engine."""

POINTS = 120
"""Points of a request's history; when there are more, every other one is dropped."""

Point = tuple[float, int, int]


@dataclass(frozen=True)
class Queue:
    """How many requests run and wait."""

    running: int
    waiting: int


class LiveFeed:
    """Snapshots of one engine.

    Args:
        folder: where they go; made, for this user alone, if it is not there.
        engine: the engine's index.
        model: the model's served name.
        facts: about the engine.
        pages: the page accounting.
        journals: of every mode.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        folder: Path,
        engine: int,
        model: str,
        facts: EngineFacts,
        pages: GrowPageManager,
        journals: Sequence[Journal],
        clock: Callable[[], float],
    ) -> None:
        # The command that `--print-command` shows names a folder that nobody has made.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._engine = engine
        self._model = model
        self._facts = facts
        self._pages = pages
        self._journals = journals
        self._pace = Pace(INTERVAL_S, clock)
        self._history: dict[str, list[Point]] = {}
        self._strides: dict[str, int] = {}
        self._ticks = 0
        self._failed = False

    def update(self, requests: Mapping[str, Request], queue: Queue, mode: Mode) -> None:
        """Write a snapshot if one is due: now and then, and whenever the engine falls idle."""
        if self._failed or not self._pace.is_due(at_once=not requests):
            return
        try:
            write_snapshot(self._folder, self._snapshot(requests, queue, mode))
        except OSError as error:
            # A page to look at must not stop the engine.
            self._failed = True
            logger.error("growpage: the live page is not updated any more: %s", error)

    def _snapshot(self, requests: Mapping[str, Request], queue: Queue, mode: Mode) -> Snapshot:
        now = time.time()
        self._ticks += 1
        accounts = self._pages.accounts
        for gone in self._history.keys() - accounts.keys():
            del self._history[gone], self._strides[gone]
        decisions = [decision for journal in self._journals for decision in journal.recent]
        return Snapshot(
            time=now,
            engine=self._engine,
            model=self._model,
            policy=self._facts.policy,
            score=self._facts.score,
            mode=mode,
            cache=self._facts.cache,
            block_size=self._pages.block_size,
            total_pages=self._pages.total_pages,
            free_pages=self._pages.free_pages,
            cached_pages=self._pages.cached_pages(),
            running=queue.running,
            waiting=queue.waiting,
            max_num_seqs=self._facts.max_num_seqs,
            requests=[
                self._state(name, requests[name], account, now)
                for name, account in accounts.items()
            ],
            decisions=sorted(decisions, key=_time)[-200:],
            totals=self._totals(),
        )

    def _state(self, name: str, request: Request, account: Account, now: float) -> RequestState:
        pages = [block.block_id for block in self._pages.req_to_blocks.get(name, ())]
        logical = request.num_computed_tokens
        uncompressed = cdiv(logical, self._pages.block_size)
        return RequestState(
            id=name,
            tenant=account.tenant,
            mode="enforce" if account.enforced else "observe",
            prompt=request.num_prompt_tokens,
            logical=logical,
            kept=logical - account.evicted,
            evicted=account.evicted,
            compressions=account.compressions,
            pages=pages,
            history=self._remember(name, (now, len(pages), uncompressed)),
        )

    def _remember(self, name: str, point: Point) -> list[Point]:
        """Add to a request's history, which grows coarser as it grows longer."""
        history = self._history.setdefault(name, [])
        stride = self._strides.setdefault(name, 1)
        if self._ticks % stride == 0 or not history:
            history.append(point)
        if len(history) > POINTS:
            history[:] = history[::2]
            self._strides[name] = 2 * stride
        return history

    def _totals(self) -> dict[str, float]:
        """Of what was carried out; in a server that only observes, of what would have been."""
        enforced, watched = (journal.ledger for journal in self._journals)
        ledger = enforced if enforced.compressions or enforced.growths else watched
        return {
            "compressions": ledger.compressions,
            "growths": ledger.growths,
            "growths_refused": ledger.growths_refused,
            "evicted_tokens": ledger.evicted_tokens,
            "reclaimed_pages": ledger.reclaimed_pages,
            "preemptions": enforced.preemptions,
            "recomputed_share": enforced.recomputed_share,
        }


def _time(decision: DecisionState) -> float:
    return decision["time"]

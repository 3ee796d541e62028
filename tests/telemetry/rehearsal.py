"""Engines that act as ours do without a model: the same seed gives the same snapshots."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from growpage.telemetry.snapshot import DecisionState, Mode, RequestState, Snapshot

BLOCK = 16
STEP_S = 0.25
"""Seconds in which a running request writes :data:`TOKENS_A_STEP` tokens."""
TOKENS_A_STEP = 6
SHARED_PREFIX_PAGES = 3
MAX_HISTORY = 120


@dataclass
class _Request:
    state: RequestState
    length: int
    """Tokens at which it ends."""
    limit: int
    """Pages at which it no longer grows."""


@dataclass
class RehearsedEngine:
    """An engine whose requests grow, are compressed and end; :meth:`run` lets time pass."""

    index: int
    total_pages: int
    time: float
    mode: Mode = "enforce"
    policy: str = "elastic"
    max_num_seqs: int = 24
    id_prefix: str = "chatcmpl-"
    _random: random.Random = field(init=False)
    _free: list[int] = field(init=False)
    _cached: set[int] = field(default_factory=set)
    _requests: list[_Request] = field(default_factory=list)
    _decisions: deque[DecisionState] = field(default_factory=lambda: deque(maxlen=200))
    _totals: dict[str, float] = field(init=False)
    _waiting: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.index)
        self._free = list(range(1, self.total_pages + 1))
        self._totals = dict.fromkeys(
            (
                *("compressions", "growths", "growths_refused", "evicted_tokens"),
                *("reclaimed_pages", "preemptions", "recomputed_share"),
            ),
            0.0,
        )
        self._prefix = [self._take() for _ in range(SHARED_PREFIX_PAGES)]

    def run(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        for _ in range(round(seconds / STEP_S)):
            self.time += STEP_S
            self._admit()
            for request in list(self._requests):
                self._step(request)
            self._waiting = max(0, self._waiting + self._random.choice((-1, 0, 0, 1)))

    def snapshot(self) -> Snapshot:
        """What the engine would write now."""
        return {
            "time": self.time,
            "engine": self.index,
            "model": "SmolLM2-135M-Instruct",
            "policy": self.policy,
            "score": "window",
            "mode": self.mode,
            "cache": "bfloat16",
            "block_size": BLOCK,
            "total_pages": self.total_pages,
            "free_pages": len(self._free),
            "cached_pages": sorted(self._cached & set(self._free)),
            "running": len(self._requests),
            "waiting": self._waiting,
            "max_num_seqs": self.max_num_seqs,
            "requests": [
                {**r.state, "pages": list(r.state["pages"]), "history": _thinned(r.state)}
                for r in self._requests
            ],
            "decisions": list(self._decisions),
            "totals": dict(self._totals),
        }

    def _admit(self) -> None:
        if len(self._requests) >= self.max_num_seqs or self._random.random() > 0.6:
            return
        prompt = self._random.randrange(60, 400)
        needed = -(-prompt // BLOCK)
        shares = needed > SHARED_PREFIX_PAGES and self._random.random() < 0.4
        own = needed - SHARED_PREFIX_PAGES if shares else needed
        if own + 4 > len(self._free):
            return
        pages = [*(self._prefix if shares else ()), *(self._take() for _ in range(own))]
        state: RequestState = {
            "id": f"{self.id_prefix}{self._random.randrange(16**12):012x}",
            "tenant": self._random.choice((None, "search", "batch", "assistant")),
            "mode": self.mode,
            "prompt": prompt,
            "logical": prompt,
            "kept": prompt,
            "evicted": 0,
            "compressions": 0,
            "pages": pages,
            "history": [(self.time, len(pages), len(pages))],
        }
        length = prompt + int(self._random.lognormvariate(6.2, 0.7))
        limit = needed + self._random.randrange(3, 24)
        self._requests.append(_Request(state, length, limit))

    def _step(self, request: _Request) -> None:
        state = request.state
        state["logical"] += TOKENS_A_STEP
        state["kept"] += TOKENS_A_STEP
        if state["kept"] > len(state["pages"]) * BLOCK:
            self._boundary(request)
        state["history"].append((self.time, len(state["pages"]), -(-state["logical"] // BLOCK)))
        if request in self._requests and state["logical"] >= request.length:
            self._end(request)

    def _boundary(self, request: _Request) -> None:
        state = request.state
        before = len(state["pages"])
        delta = self._random.gauss(4, 18)
        observed = self.mode == "observe"
        wants_to_grow = len(self._free) > 4 and before < request.limit
        if observed and not self._free:
            return self._preempt(request)
        if observed or wants_to_grow:
            state["pages"].append(self._take())
        if wants_to_grow:
            self._totals["growths"] += 1
            reason = "spare" if len(self._free) > self.total_pages // 4 else "signal"
            return self._decide(state, "grow", reason, before, 0, delta, None)
        shared = sum(page in self._prefix for page in state["pages"])
        given = self._random.choice((0, 1, 1, 2)) if before - shared > 6 else 0
        evicted = BLOCK * (given + 1)
        reason = "pool" if given else "boundary"
        loss = abs(self._random.gauss(0.006, 0.008))
        if not given and self._random.random() < 0.05:
            self._totals["growths_refused"] += 1
            self._decide(state, "refuse", "quota", before, 0, delta, None)
        self._totals["compressions"] += 1
        self._totals["evicted_tokens"] += evicted
        if not observed:
            self._give(state["pages"].pop() for _ in range(given))
            self._totals["reclaimed_pages"] += given
            state["kept"] -= evicted
            state["evicted"] += evicted
            state["compressions"] += 1
        self._decide(state, "compress", reason, before, evicted, delta, loss)

    def _preempt(self, request: _Request) -> None:
        self._end(request)
        self._waiting += 1
        self._totals["preemptions"] += 1
        self._totals["recomputed_share"] = 0.01 * self._totals["preemptions"] ** 0.5

    def _end(self, request: _Request) -> None:
        self._requests.remove(request)
        self._give(page for page in request.state["pages"] if page not in self._prefix)

    def _decide(
        self,
        state: RequestState,
        action: str,
        reason: str,
        before: int,
        evicted: int,
        delta: float,
        loss: float | None,
    ) -> None:
        decision: DecisionState = {
            "time": self.time,
            "request": state["id"],
            "mode": state["mode"],
            "action": action,  # type: ignore[typeddict-item]
            "reason": reason,
            "before": before,
            "after": len(state["pages"]),
            "evicted": evicted,
            "delta": None if reason == "cold" else round(delta, 1),
            "loss": loss,
        }
        self._decisions.append(decision)

    def _take(self) -> int:
        page = self._free.pop(self._random.randrange(min(8, len(self._free))))
        self._cached.discard(page)
        return page

    def _give(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._free.append(page)
            if self._random.random() < 0.5:
                self._cached.add(page)


def _thinned(state: RequestState) -> list[tuple[float, int, int]]:
    history = state["history"]
    stride = -(-len(history) // MAX_HISTORY)
    return history[::stride]


def three_engines(now: float) -> list[RehearsedEngine]:
    """A busy engine, one that only observes, and one whose pool is large, at ``now``."""
    engines = [
        RehearsedEngine(0, 480, now - 90),
        RehearsedEngine(1, 620, now - 60, mode="observe", policy="growpage"),
        RehearsedEngine(2, 6000, now - 240, max_num_seqs=64, policy="fixed"),
    ]
    for engine in engines:
        engine.run(now - engine.time)
    return engines

"""A fleet of replicas that queue, serve and start slowly; simple, and the same for every policy.

A request goes to the replica with the fewest requests, waits there for a slot and for room in the
KV cache, and then takes as long as its tokens do. It holds its prompt and half of its answer all
the while, which is what it holds on average.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from growpage.fleet.metric_names import Signal
from growpage.fleet.signals import PodSeries


@dataclass(frozen=True)
class ReplicaModel:
    """One replica, and the requests that it gets.

    Attributes:
        slots: requests that it runs at once (vLLM's ``max_num_seqs``).
        kv_tokens: tokens that its KV cache holds.
        cold_start: seconds from its creation until it serves.
        prompt_tokens: of a request, the mean of an exponential distribution.
        answer_tokens: likewise.
        seconds_per_token: of an answer.
        slo_seconds: a request that waits longer for its start has missed its objective.
    """

    slots: int = 64
    kv_tokens: int = 32_768
    cold_start: float = 180.0
    prompt_tokens: float = 400.0
    answer_tokens: float = 400.0
    seconds_per_token: float = 0.04
    slo_seconds: float = 5.0


@dataclass(slots=True)
class _Request:
    arrived: float
    tokens: float
    seconds: float


@dataclass
class Replica:
    """One replica's requests and samples."""

    name: str
    ready_at: float
    model: ReplicaModel
    queue: deque[_Request] = field(default_factory=deque)
    running: list[tuple[float, float]] = field(default_factory=list)
    """A heap of when each ends, and the tokens that it holds."""
    held: float = 0.0
    leaving: bool = False
    series: PodSeries = field(default_factory=PodSeries)

    @property
    def requests(self) -> int:
        """All that it has, running or not."""
        return len(self.running) + len(self.queue)

    @property
    def usage(self) -> float:
        """Share of its KV cache in use."""
        return self.held / self.model.kv_tokens

    def advance(self, now: float) -> Iterable[float]:
        """End and start requests; how long each that started had waited."""
        while self.running and self.running[0][0] <= now:
            self.held -= heapq.heappop(self.running)[1]
        while self.queue and len(self.running) < self.model.slots:
            request = self.queue[0]
            if self.running and self.held + request.tokens > self.model.kv_tokens:
                break
            self.queue.popleft()
            self.held += request.tokens
            heapq.heappush(self.running, (now + request.seconds, request.tokens))
            yield now - request.arrived

    def scrape(self, now: float, keep: float) -> None:
        """Take down its metrics, as Prometheus would, and forget older ones."""
        values = {
            Signal.UP: 1.0,
            Signal.KV_USAGE: min(1.0, max(0.0, self.usage)),
            Signal.RUNNING: float(len(self.running)),
            Signal.WAITING: float(len(self.queue)),
            Signal.PREEMPTIONS: 0.0,
            Signal.MAX_NUM_SEQS: float(self.model.slots),
        }
        for signal, value in values.items():
            key = (self.name, "0", "")
            samples = [s for s in self.series.of[signal].get(key, ()) if s[0] > now - keep]
            self.series.of[signal][key] = [*samples, (now, value)]


class SimulatedFleet:
    """All replicas of one model."""

    def __init__(self, model: ReplicaModel, replicas: int, seed: int) -> None:
        self._model = model
        self._draw = random.Random(seed)
        self._number = 0
        self._to_replace: list[str] = []
        self.desired = replicas
        self.replicas: list[Replica] = []
        self.waits: list[float] = []
        self.dropped = 0.0
        for _ in range(replicas):
            self._add(ready_at=float("-inf"))

    def live(self) -> list[Replica]:
        """Those that are not on their way out."""
        return [replica for replica in self.replicas if not replica.leaving]

    def ready(self, now: float) -> list[Replica]:
        """Those that take requests."""
        return [replica for replica in self.live() if replica.ready_at <= now]

    def scale(self, replicas: int, now: float) -> None:
        """Start or drain replicas; those that have the fewest requests leave first."""
        self.desired = replicas
        self._settle(now)

    def begin_update(self) -> None:
        """Replace every replica, one at a time, each by one that is ready first."""
        self._to_replace = [replica.name for replica in self.live()]

    def advance(self, now: float, arriving: int) -> None:
        """One second: requests come, go on and end."""
        self._update(now)
        ready = self.ready(now)
        for _ in range(arriving):
            self._route(self._request(now), ready)
        for replica in self.replicas:
            if replica.ready_at <= now:
                self.waits.extend(replica.advance(now))
        self.replicas = [
            replica for replica in self.replicas if not replica.leaving or replica.running
        ]

    def scrape(self, now: float, keep: float) -> None:
        """Take down the metrics of those that are ready, and forget older ones."""
        for replica in self.ready(now):
            replica.scrape(now, keep)

    def forget(self) -> None:
        """Count from here."""
        self.waits, self.dropped = [], 0.0

    def arrivals(self, rate: float) -> int:
        """How many requests come in a second, at random."""
        count, left = 0, self._draw.expovariate(1.0)
        while left < rate:
            count += 1
            left += self._draw.expovariate(1.0)
        return count

    def _request(self, now: float) -> _Request:
        prompt = self._draw.expovariate(1 / self._model.prompt_tokens)
        answer = self._draw.expovariate(1 / self._model.answer_tokens)
        return _Request(now, prompt + answer / 2, answer * self._model.seconds_per_token)

    def _route(self, request: _Request, ready: list[Replica]) -> None:
        if ready:
            min(ready, key=lambda replica: replica.requests).queue.append(request)
        else:
            self.dropped += 1

    def _update(self, now: float) -> None:
        """A surge of one: the oldest leaves once there is one ready more than asked for."""
        if not self._to_replace:
            return
        if len(self.live()) <= self.desired:
            self._add(ready_at=now + self._model.cold_start)
        elif len(self.ready(now)) > self.desired:
            name = self._to_replace.pop(0)
            for replica in self.live():
                if replica.name == name:
                    self._drain(replica, now)

    def _settle(self, now: float) -> None:
        surge = 1 if self._to_replace else 0
        while len(self.live()) < self.desired:
            self._add(ready_at=now + self._model.cold_start)
        while len(self.live()) > self.desired + surge:
            # Kubernetes too takes those first that are not ready.
            leaving = max(
                self.live(), key=lambda replica: (replica.ready_at > now, -replica.requests)
            )
            self._drain(leaving, now)

    def _drain(self, replica: Replica, now: float) -> None:
        replica.leaving = True
        others = self.ready(now)
        while replica.queue:
            self._route(replica.queue.popleft(), others)

    def _add(self, ready_at: float) -> None:
        self.replicas.append(Replica(f"pod-{self._number}", ready_at, self._model))
        self._number += 1

"""Watches vLLM's scheduler from outside and keeps what a benchmark reports.

It counts the same way with and without the plugin, so plain vLLM is measured with the same ruler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from growpage.bench.results import Preemption, Timeline

TIMELINE_SAMPLES = 400
"""Steps kept for figures, evenly spaced; everything else is taken over all steps."""


@dataclass(frozen=True)
class _Sample:
    step: int
    seconds: float
    pages_used: int
    running: int
    waiting: int
    pages: Mapping[str, int]
    tokens: Mapping[str, int]


@dataclass
class Recorder:
    """Stands in for ``scheduler.schedule`` and takes a sample after each call of it.

    That is the moment when the pages of a step are allocated and its forward pass is still to
    come: pages that a request holds only in its last step are seen too.
    """

    scheduler: Any
    names: Mapping[str, str]
    """Our names of requests, by vLLM's ids (it adds a random suffix)."""
    clock: Callable[[], float] = perf_counter

    preempted: list[Preemption] = field(default_factory=list)
    recomputed_tokens: int = 0
    _samples: list[_Sample] = field(default_factory=list)
    _computed: dict[str, int] = field(default_factory=dict)
    _start: float = 0.0

    def attach(self) -> None:
        """Start to watch, at the time that counts as zero."""
        self._start = self.clock()
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self._observe

    def detach(self) -> None:
        """Leave the scheduler as it was."""
        del self.scheduler.schedule

    @property
    def steps(self) -> int:
        """Steps seen."""
        return len(self._samples)

    @property
    def mean_resident(self) -> float:
        """Requests that held pages at once, over all steps."""
        return len(self._held()) / self.steps if self.steps else 0.0

    @property
    def peak_resident(self) -> int:
        """Most requests that held pages at once."""
        return max((len(sample.pages) for sample in self._samples), default=0)

    @property
    def peak_pages(self) -> int:
        """Most pages that one request held."""
        return max(self._held(), default=0)

    @property
    def mean_pages(self) -> float:
        """Pages a request, over all steps and all requests that hold any."""
        held = self._held()
        return sum(held) / len(held) if held else 0.0

    @property
    def mean_pages_used(self) -> float:
        """Pages of the pool that were not free, over all steps."""
        return sum(sample.pages_used for sample in self._samples) / max(self.steps, 1)

    @property
    def peak_pages_used(self) -> int:
        """Most pages of the pool that were not free."""
        return max((sample.pages_used for sample in self._samples), default=0)

    def timeline(self, limit: int = TIMELINE_SAMPLES) -> Timeline:
        """At most ``limit`` samples, evenly spaced, the first and the last among them."""
        kept = [self._samples[index] for index in evenly(len(self._samples), limit)]
        names = self.names.values()
        return Timeline(
            step=[sample.step for sample in kept],
            seconds=[round(sample.seconds, 3) for sample in kept],
            pages_used=[sample.pages_used for sample in kept],
            running=[sample.running for sample in kept],
            waiting=[sample.waiting for sample in kept],
            pages={name: [sample.pages.get(name, 0) for sample in kept] for name in names},
            tokens={name: [sample.tokens.get(name, 0) for sample in kept] for name in names},
        )

    def held_by_request(self) -> dict[str, list[int]]:
        """Pages that each request held, in each step in which it held any."""
        held: dict[str, list[int]] = {}
        for sample in self._samples:
            for name, pages in sample.pages.items():
                held.setdefault(name, []).append(pages)
        return held

    def _held(self) -> list[int]:
        return [pages for sample in self._samples for pages in sample.pages.values()]

    def _observe(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        seconds = self.clock() - self._start
        for request_id in output.preempted_req_ids or ():
            if request_id in self.names:
                self.preempted.append(
                    Preemption(seconds=round(seconds, 3), request=self.names[request_id])
                )
        for request_id, scheduled in output.num_scheduled_tokens.items():
            self._count_recomputed(request_id, scheduled)
        self._samples.append(self._sample(seconds))
        return output

    def _count_recomputed(self, request_id: str, scheduled: int) -> None:
        # vLLM has already advanced the count by what it scheduled. A position below the highest
        # one reached before goes through the model again; one that a prefix-cache hit restores
        # was never scheduled and does not count.
        end = self.scheduler.requests[request_id].num_computed_tokens
        reached = self._computed.get(request_id, 0)
        self.recomputed_tokens += max(0, min(end, reached) - (end - scheduled))
        self._computed[request_id] = max(end, reached)

    def _sample(self, seconds: float) -> _Sample:
        scheduler, names = self.scheduler, self.names
        pages = {
            names[request_id]: held
            for request_id, held in pages_by_request(scheduler).items()
            if held and request_id in names
        }
        return _Sample(
            step=len(self._samples),
            seconds=seconds,
            pages_used=pool_size(scheduler) - free_pages(scheduler),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pages=pages,
            tokens={
                names[request.request_id]: request.num_tokens
                for request in scheduler.running
                if names.get(request.request_id) in pages
            },
        )


def pages_by_request(scheduler: Any) -> Mapping[str, int]:
    """Physical pages that each request holds, by vLLM's ids, with or without the plugin."""
    if hasattr(scheduler, "pages_by_request"):
        held: Mapping[str, int] = scheduler.pages_by_request()
        return held
    (manager,) = scheduler.kv_cache_manager.coordinator.single_type_managers
    return {request_id: len(blocks) for request_id, blocks in manager.req_to_blocks.items()}


def free_pages(scheduler: Any) -> int:
    """Pages that a request can get, prefix-cached ones that nobody holds among them."""
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def pool_size(scheduler: Any) -> int:
    """Pages that requests can hold; vLLM keeps one more, its null block."""
    return int(scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1


def evenly(count: int, limit: int) -> Sequence[int]:
    """At most ``limit`` indices below ``count``, evenly spaced, both ends among them."""
    if count <= limit:
        return range(count)
    return [round(index * (count - 1) / (limit - 1)) for index in range(limit)]

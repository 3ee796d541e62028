"""Makes the reports that an engine sends to its server, out of what the scheduler knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from vllm.v1.request import Request

from growpage._version import __version__
from growpage.engine.checks import EIGHT_BIT_CACHES, config_of
from growpage.engine.journal import Journal
from growpage.engine.manager import GrowPageManager
from growpage.engine.observations import Observations
from growpage.engine.pace import Pace
from growpage.telemetry.report import Report

if TYPE_CHECKING:
    from vllm.config import VllmConfig

INTERVAL_S = 0.25
"""Seconds between two reports of a busy engine."""

WALK_INTERVAL_S = 10.0
"""Seconds between two walks over all page tables, which take some 20 ms for 50,000 pages."""

Labels = tuple[str, ...]
Gauge = tuple[str, Labels, float]
"""A name, the values of its own labels, and its value."""


@dataclass(frozen=True)
class EngineFacts:
    """What does not change while the engine runs."""

    policy: str
    score: str
    cache: str
    """Type of the KV cache."""
    bytes_ratio: float
    """Bytes of a 16-bit cache over those of this one."""
    max_num_seqs: int

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> EngineFacts:
        """The facts about an engine of this configuration."""
        budget = config_of(vllm_config)
        cache = vllm_config.cache_config.cache_dtype
        dtype = vllm_config.model_config.dtype
        return cls(
            policy=budget.policy,
            score=budget.score,
            cache=str(dtype).removeprefix("torch.") if cache == "auto" else cache,
            bytes_ratio=2 / (1 if cache in EIGHT_BIT_CACHES else dtype.itemsize),
            max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        )

    def gauges(self, capacity_tokens: int, mode: str) -> Iterator[Gauge]:
        """What is known as soon as the engine has a pool of ``capacity_tokens``."""
        yield "growpage_kv_capacity_tokens", (), capacity_tokens
        yield "growpage_intra_page_compress_ratio", (), self.bytes_ratio
        yield "growpage_max_num_seqs", (), self.max_num_seqs
        labels = (self.policy, self.score, mode, self.cache, __version__)
        yield "growpage_mode_info", labels, 1


class Reporter:
    """Reports of one engine.

    Args:
        facts: about the engine.
        pages: the page accounting.
        journals: of every mode.
        observations: values for the histograms.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        facts: EngineFacts,
        pages: GrowPageManager,
        journals: Sequence[Journal],
        observations: Observations,
        clock: Callable[[], float],
    ) -> None:
        self._facts = facts
        self._pages = pages
        self._journals = journals
        self._observations = observations
        self._pace = Pace(INTERVAL_S, clock)
        self._walk_pace = Pace(WALK_INTERVAL_S, clock)
        self._walked: list[Gauge] = []
        self._sent: dict[tuple[str, Labels], float] = {}

    def report(self, requests: Mapping[str, Request], mode: str) -> Report | None:
        """A report, if one is due: now and then, and whenever the engine falls idle."""
        if not self._pace.is_due(at_once=not requests):
            return None
        return Report(
            counters=list(self._new_counts()),
            gauges=list(self._gauges(requests, mode)),
            values=self._observations.drain(),
        )

    def _new_counts(self) -> Iterator[tuple[str, Labels, float]]:
        """Counters that have moved since the last report, and by how much."""
        for name, labels, total in self._totals():
            more = total - self._sent.get((name, labels), 0)
            if more:
                self._sent[name, labels] = total
                yield name, labels, more

    def _totals(self) -> Iterator[tuple[str, Labels, float]]:
        yield "growpage_kv_page_allocations", (), self._pages.pages_allocated
        for journal in self._journals:
            ledger, mode = journal.ledger, journal.mode
            yield "growpage_reclaimed_pages", (mode,), ledger.reclaimed_pages
            yield "growpage_evicted_tokens", (mode,), ledger.evicted_tokens
            for name, by_reason in (
                ("growpage_compressions", ledger.by_reason),
                ("growpage_growths", ledger.growths_by_reason),
                ("growpage_growth_refused", ledger.refused_by_reason),
            ):
                for reason, count in by_reason.items():
                    yield name, (reason, mode), count
        # Yielded once: for each ledger, they would seem to fall, which a counter must not.
        ledgers = [journal.ledger for journal in self._journals]
        yield "growpage_recomputed_tokens", (), sum(each.recomputed_tokens for each in ledgers)
        yield "growpage_refused_prompts", (), sum(each.refused_prompts for each in ledgers)
        yield "growpage_compactions_confirmed", (), sum(each.confirmed for each in ledgers)

    def _gauges(self, requests: Mapping[str, Request], mode: str) -> Iterator[Gauge]:
        book = self._pages
        logical = kept = slots = 0
        for name, account in book.accounts.items():
            tokens = requests[name].num_computed_tokens
            logical += tokens
            kept += tokens - account.evicted
            slots += book.pages(name) * book.block_size
        yield "growpage_kv_kept_tokens", (), kept
        yield "growpage_kv_logical_tokens", (), logical
        yield "growpage_kv_page_utilization", (), min(kept / slots, 1.0) if slots else 1.0
        yield "growpage_compression_ratio", (), logical / kept if kept else 1.0
        if self._walk_pace.is_due(at_once=not requests):
            self._walked = [
                ("growpage_page_table_fragmentation", (), fragmentation(book)),
                ("growpage_orphaned_pages", (), orphaned_pages(book)),
            ]
        yield from self._walked
        yield from self._facts.gauges(book.total_pages * book.block_size, mode)


def fragmentation(pages: GrowPageManager) -> float:
    """Neighbours in the requests' page tables that are none in memory, over all neighbours."""
    neighbours = apart = 0
    for blocks in pages.req_to_blocks.values():
        ids = [block.block_id for block in blocks]
        neighbours += max(len(ids) - 1, 0)
        apart += sum(after - before != 1 for before, after in pairwise(ids))
    return apart / neighbours if neighbours else 0.0


def orphaned_pages(pages: GrowPageManager) -> int:
    """Pages that are neither free nor in any request's table."""
    held = {block.block_id for blocks in pages.req_to_blocks.values() for block in blocks}
    return pages.total_pages - pages.free_pages - len(held)

"""Everything that an engine tells about itself while it runs: metrics, the live page, traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request

from growpage.budget.rollout import Mode
from growpage.engine.accounts import Account
from growpage.engine.checks import operations_of, served_names
from growpage.engine.journal import Journal
from growpage.engine.live import LiveFeed, Queue
from growpage.engine.manager import GrowPageManager
from growpage.engine.messages import StepAnswer
from growpage.engine.observations import Observations
from growpage.engine.reporter import EngineFacts, Reporter
from growpage.telemetry.report import KEY

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class Monitor:
    """Tells what it is asked to, and nothing where it was not asked.

    Args:
        vllm_config: the engine's configuration.
        pages: the page accounting.
        journals: of the modes ``enforce`` and ``observe``.
        observations: takes values for histograms.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        pages: GrowPageManager,
        journals: Sequence[Journal],
        observations: Observations,
        clock: Callable[[], float],
    ) -> None:
        self._pages = pages
        self._observations = observations
        self._clock = clock
        operations = operations_of(vllm_config)
        facts = EngineFacts.of(vllm_config)
        self._reporter = (
            Reporter(facts, pages, journals, observations, clock) if operations.metrics else None
        )
        self._feed = (
            LiveFeed(
                operations.live,
                vllm_config.parallel_config.data_parallel_index,
                min(served_names(vllm_config)),
                facts,
                pages,
                journals,
                clock,
            )
            if operations.live
            else None
        )
        self._traces = vllm_config.observability_config.otlp_traces_endpoint is not None
        self._under_way: list[float] = []  # seconds from boundary to plan

    # ---- a step ------------------------------------------------------------------------------

    def passed(self, seconds: float) -> None:
        """A pass of decisions has taken as long."""
        self._observations.observe("growpage_decision_seconds", seconds, "decide")

    def scheduled(self, running: Iterable[Account], compressed: Sequence[Account]) -> None:
        """A step has been scheduled: of those that run in it, these are compressed first."""
        now = self._clock()
        for account in compressed:
            self._under_way.append(now - (account.boundary_at or now))
            account.boundary_at = None
        for account in running:
            if account.boundary_at is not None:
                waited = now - account.boundary_at
                self._observations.observe("growpage_page_allocation_latency_seconds", waited)
                account.boundary_at = None

    def answered(self, answer: StepAnswer) -> None:
        """The worker has told how long it took."""
        for phase, durations in answer.seconds.items():
            for seconds in durations:
                self._observations.observe("growpage_decision_seconds", seconds, phase)
        for seconds in answer.seconds.get("compact", ()):
            if self._under_way:
                self._observations.observe(
                    "growpage_page_allocation_latency_seconds", self._under_way.pop(0) + seconds
                )
        for report in answer.reports.values():
            entropy, density = report.demand.entropy, report.demand.density
            if entropy is not None:
                self._observations.observe("growpage_lts_entropy", entropy)
            if density is not None:
                self._observations.observe("growpage_sts_density", density)

    def settle(
        self, stats: SchedulerStats | None, requests: Mapping[str, Request], mode: Mode
    ) -> None:
        """Send along with vLLM's statistics of a step what is due.

        Their field for KV connectors is the one that takes anything, and growpage refuses KV
        connectors; our stat logger takes the report out again before vLLM's own see it.
        """
        if stats is None:
            return
        if self._feed is not None:
            queue = Queue(stats.num_running_reqs, stats.num_waiting_reqs)
            self._feed.update(requests, queue, mode)
        if self._reporter is not None:
            report = self._reporter.report(requests, mode)
            if report is not None:
                stats.kv_connector_stats = {KEY: report}

    # ---- the end of a request ----------------------------------------------------------------

    def ended(self, request: Request, account: Account) -> None:
        """A request ends, and still holds its pages."""
        held = max(account.peak_pages, self._pages.pages(request.request_id))
        self._observations.observe("growpage_request_pages", held)
        self._observations.observe("growpage_kv_demand_tokens", request.num_computed_tokens)
        if self._traces:
            from growpage.engine.tracing import with_figures

            request.trace_headers = with_figures(
                request.trace_headers,
                {
                    "mode": "enforce" if account.enforced else "observe",
                    "peak_pages": held,
                    "kept_tokens": request.num_computed_tokens - account.evicted,
                    "evicted_tokens": account.evicted,
                    "compressions": account.compressions,
                },
                request.arrival_time,
            )

"""The scheduler: vLLM's own, with one pass of capacity decisions before each step."""

from __future__ import annotations

import time
from typing import Any

from vllm.logger import init_logger
from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from growpage.budget.policies import Policy, make_policy, measures_demand
from growpage.engine.capacity import Candidate
from growpage.engine.checks import check_engine, config_of, operations_of, served_names
from growpage.engine.enforcement import Enforcement
from growpage.engine.manager import GrowPageManager
from growpage.engine.messages import (
    ATTRIBUTE,
    CompactionPlan,
    DemandReport,
    StepAnswer,
    StepMessage,
)
from growpage.engine.monitor import Monitor
from growpage.engine.observations import Observations
from growpage.engine.rollout import RolloutWatch
from growpage.engine.watch import CompactionWatch

logger = init_logger(f"vllm.{__name__}")  # vLLM shows its own loggers only


class BudgetMixin(Scheduler):
    """Capacity decisions for whichever of vLLM's schedulers it is mixed into."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_engine(self.vllm_config)
        managers = self.kv_cache_manager.coordinator.single_type_managers
        if len(managers) != 1 or not isinstance(managers[0], GrowPageManager):
            raise ValueError(
                "growpage manages full-attention layers only, but this engine's KV cache has "
                f"{', '.join(type(manager).__name__ for manager in managers)}; "
                "serve this model without growpage's --scheduler-cls and --worker-cls"
            )
        self.budget_config = config_of(self.vllm_config)
        self.policy: Policy = make_policy(self.budget_config, managers[0].block_size)
        self.pages: GrowPageManager = managers[0]
        operations = operations_of(self.vllm_config)
        observations = Observations(wanted=operations.metrics)
        self.enforcement = Enforcement(
            self.budget_config,
            self.policy,
            self.pages,
            RolloutWatch(operations.rollout, served_names(self.vllm_config), time.monotonic),
            observations,
            self.max_model_len,
            time.monotonic,
        )
        self.capacity = self.enforcement.controller
        self.ledger = self.capacity.ledger
        self._monitor = Monitor(
            self.vllm_config,
            self.pages,
            self.enforcement.journals,
            observations,
            time.monotonic,
        )
        self._measures = measures_demand(self.budget_config)
        self._evicted: dict[str, int] = {}  # tokens lost so far by requests that have a cache
        self._lost_tokens: dict[str, int] = {}  # computed tokens of preempted requests
        self._failed: dict[str, str] = {}  # requests that end with an error, and why
        self._watch = CompactionWatch(str(self.parallel_config.worker_cls))
        if self.policy.compresses:
            self.pages.new_account = lambda name: self.enforcement.new_account(self.requests[name])
        if self.policy.shares:
            self.pages.admit_pages = self.budget_config.admit_pages or 0
        tokens = self.pages.total_pages * self.pages.block_size
        # vLLM infers it from what a request may need, and ours need not grow to max_model_len.
        self.vllm_config.cache_config.kv_cache_size_tokens = tokens
        logger.info(
            "growpage: policy %s, %d tokens in %d pages of %d",
            self.budget_config.policy,
            tokens,
            self.pages.total_pages,
            self.pages.block_size,
        )

    # ---- vLLM's hooks ------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take in a request; one whose prompt can never fit fails with the next step's outputs."""
        super().add_request(request)
        pages = cdiv(request.num_prompt_tokens, self.pages.block_size)
        if pages > self.pages.total_pages:
            self.ledger.refused_prompts += 1
            self._fail(
                request.request_id,
                f"the prompt has {request.num_prompt_tokens} tokens ({pages} pages), but the whole "
                f"KV cache holds {self.pages.total_pages * self.pages.block_size} "
                f"({self.pages.total_pages} pages); shorten it, or give the server more KV "
                "cache",
            )

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Decide, let vLLM schedule, and attach what the worker has to do."""
        if not self.policy.compresses:
            output = super().schedule(throttle_prefills)
            setattr(output, ATTRIBUTE, StepMessage())
            self._count_recomputed(output)
            return output
        start = time.perf_counter()
        plans = self.enforcement.decide(self.running, self._candidate())
        self._monitor.passed(time.perf_counter() - start)
        accounts = self.pages.accounts
        planned = {plan.request_id: accounts[plan.request_id] for plan in plans}
        output = super().schedule(throttle_prefills)
        # A request that vLLM preempts after all has lost its pages: there is nothing to move.
        alive = [p for p in plans if accounts.get(p.request_id) is planned[p.request_id]]
        for request in self._admitted(output):
            self.enforcement.enter(request)
        setattr(output, ATTRIBUTE, self._message(output, alive))
        self._monitor.scheduled(
            [
                accounts[request.request_id]
                for request in self.enforcement.looked_at
                if request.request_id in output.num_scheduled_tokens
            ],
            [planned[plan.request_id] for plan in alive],
        )
        self.enforcement.end_step(self.requests[plan.request_id] for plan in alive)
        self._count_recomputed(output)
        return output

    def _admitted(self, output: SchedulerOutput) -> list[Request]:
        """The requests that the step admits, in order: vLLM puts them behind those that run."""
        count = len(output.scheduled_new_reqs) + len(output.scheduled_cached_reqs.resumed_req_ids)
        return self.running[len(self.running) - count :]

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in the worker's answer, then let vLLM take in the tokens."""
        answer: StepAnswer | None = getattr(model_runner_output, ATTRIBUTE, None)
        if self.policy.compresses:
            self._watch.settled(len(getattr(scheduler_output, ATTRIBUTE).plans), answer)
        if answer is not None:
            self.ledger.confirmed += answer.compactions
            self._monitor.answered(answer)
            for request_id, report in answer.reports.items():
                self._take_report(request_id, report)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._failed:
            self._send_failures(outputs)
        return outputs

    def _take_report(self, request_id: str, report: DemandReport) -> None:
        """Note a measurement; a stale one is ignored, and one that is not finite is an error."""
        request = self.requests.get(request_id)
        account = self.enforcement.account_of(request) if request else None
        if request is None or account is None or report.epoch != request.num_preemptions:
            self.ledger.stale_reports += 1
        elif report.demand.is_finite:
            account.report = report
        else:
            self._fail(
                request_id,
                f"its attention cannot be measured at position {report.position} "
                f"({report.demand}): its keys or queries are not finite",
            )

    def _fail(self, request_id: str, why: str) -> None:
        """End the request with an error, with the next outputs."""
        logger.error("growpage: request %s fails: %s", request_id, why)
        self._failed[request_id] = why

    def _send_failures(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        for request in self.finish_requests(self._failed, RequestStatus.FINISHED_ERROR):
            failed = EngineCoreOutput(
                request_id=request.request_id,
                new_token_ids=[],
                finish_reason=request.get_finished_reason(),
                stop_reason=self._failed[request.request_id],
            )
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(failed)
        self._failed.clear()

    def _candidate(self) -> Candidate | None:
        """The request that vLLM will try to admit next, if one could be admitted at all."""
        if (
            not self.policy.shares
            or not self.waiting
            or len(self.running) >= self.max_num_running_reqs
            or self.pause_state is not PauseState.UNPAUSED
            or self.pages.crowded
        ):
            return None
        request = self.waiting.peek_request()
        if request.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            return None
        if not self.enforcement.holds_for(request):
            return None
        blocks, *_ = self._get_local_prefix_cache_hit(request)
        held = sum(block.ref_cnt > 0 for block in blocks.blocks[0])
        return Candidate(request, held, self.kv_cache_manager.watermark_blocks)

    def _get_local_prefix_cache_hit(
        self, request: Request, *limits: int | None
    ) -> tuple[KVCacheBlocks, int, int, bool]:
        """As vLLM's, but no more than a preempted request may hold of its own tokens.

        ``limits`` are vLLM's own: it has none in 0.32 and one in 0.33.
        """
        blocks, tokens, boundary, diverged = super()._get_local_prefix_cache_hit(request, *limits)
        limit = self.capacity.hit_limit(request) if self._limits(request) else None
        if limit is not None and tokens > limit:
            blocks = self.kv_cache_manager.truncate_computed_blocks(blocks, limit)
            tokens = limit
        return blocks, tokens, boundary, diverged

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """vLLM's last word on a chunk's length; a preempted request's chunks end at its pages."""
        tokens = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        if tokens > 1 and self._limits(request):
            limit = self.capacity.chunk_limit(request, num_computed_tokens)
            if limit is not None:
                return min(tokens, limit)
        return tokens

    def _preempt_request(
        self, request: Request, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        self.ledger.preemptions += 1
        if self._limits(request):
            self._watch.preempted()
        self._forget(request)
        self._lost_tokens[request.request_id] = request.num_computed_tokens
        super()._preempt_request(request, timestamp, drop_stale_output)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        self._lost_tokens.pop(request.request_id, None)
        account = self.pages.accounts.get(request.request_id)
        if account is not None:
            self._monitor.ended(request, account)
        self._forget(request)
        return super()._free_request(request, delay_free_blocks)

    def _forget(self, request: Request) -> None:
        """The request loses its cache."""
        self._evicted.pop(request.request_id, None)
        self.enforcement.leave(request)

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """vLLM's statistics, with ours if they are due."""
        stats = super().make_stats(*args, **kwargs)
        self._monitor.settle(stats, self.requests, self.enforcement.mode)
        return stats

    def _limits(self, request: Request) -> bool:
        """Whether the request can be compressed."""
        return self.policy.compresses and self.enforcement.holds_for(request)

    # ---- figures -----------------------------------------------------------------------------

    def pages_by_request(self) -> dict[str, int]:
        """Pages held now by each request that holds any."""
        return {rid: len(blocks) for rid, blocks in self.pages.req_to_blocks.items() if blocks}

    # ---- messages ----------------------------------------------------------------------------

    def _message(self, output: SchedulerOutput, plans: list[CompactionPlan]) -> StepMessage:
        """What the worker must know of this step. Called after vLLM has advanced the requests."""
        accounts = self.pages.accounts
        if not accounts:
            return StepMessage()
        for plan in plans:
            self._evicted[plan.request_id] = accounts[plan.request_id].evicted
        measure: dict[str, int] = {}
        if self._measures:
            due = self.enforcement.to_measure(output.num_scheduled_tokens, self.requests)
            measure = {request.request_id: request.num_preemptions for request in due}
        return StepMessage(tuple(plans), self._evicted.copy(), measure, idle=self.enforcement.idle)

    def _count_recomputed(self, output: SchedulerOutput) -> None:
        """Add what resumed requests compute again: all they had, less their prefix-cache hit."""
        self.ledger.computed_tokens += output.total_num_scheduled_tokens
        cached = output.scheduled_cached_reqs
        hits = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for request_id in cached.resumed_req_ids:
            hits[request_id] = cached.num_computed_tokens[cached.req_ids.index(request_id)]
        for request_id, hit in hits.items():  # Model Runner V2 gets resumed requests as new ones
            self.ledger.recomputed_tokens += max(self._lost_tokens.pop(request_id, 0) - hit, 0)


class GrowPageScheduler(BudgetMixin, Scheduler):
    """vLLM's synchronous scheduler with budgets."""


class GrowPageAsyncScheduler(BudgetMixin, AsyncScheduler):
    """vLLM's asynchronous scheduler with budgets."""

"""The scheduler: vLLM's own, with one pass of capacity decisions before each step.

The pass looks at the running requests whose pages are full, asks the policy, and carries out
compressions in the page accounting at once; the worker moves the contents before the step's
forward pass. Growth needs nothing here: vLLM finds that the request needs a page, and takes it.
"""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.utils.math_utils import cdiv
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from growpage.budget.demand import Demand
from growpage.budget.policies import Action, Boundary, Policy, Pool, make_policy
from growpage.engine.checks import check_engine, config_of
from growpage.engine.ledger import Ledger
from growpage.engine.manager import Account, GrowPageManager
from growpage.engine.messages import ATTRIBUTE, CompactionPlan, DemandReport, StepMessage

logger = init_logger(__name__)

MEASURE_LEAD = 1
"""Tokens before a boundary at which demand is measured: under async scheduling a report arrives one
step late, and measuring one token early makes it arrive in time."""


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
        self.ledger = Ledger()
        self._lost_tokens: dict[str, int] = {}  # computed tokens of preempted requests
        if self.policy.compresses:
            self.pages.new_account = self._new_account
        logger.info(
            "growpage: policy %s, %d pages of %d tokens",
            self.budget_config.policy,
            self._total_pages,
            self.pages.block_size,
        )

    # ---- vLLM's hooks ------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Decide, let vLLM schedule, and attach what the worker has to do."""
        plans = self._decide() if self.policy.compresses else []
        planned = {plan.request_id: self.pages.accounts[plan.request_id] for plan in plans}
        output = super().schedule(throttle_prefills)
        # A request that vLLM preempts after all has lost its pages: there is nothing to move.
        alive = [p for p in plans if self.pages.accounts.get(p.request_id) is planned[p.request_id]]
        setattr(output, ATTRIBUTE, self._message(output, alive))
        self._count_recomputed(output)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in the demand reports, then let vLLM take in the tokens."""
        reports: dict[str, DemandReport] = getattr(model_runner_output, ATTRIBUTE, {})
        for request_id, report in reports.items():
            account = self.pages.accounts.get(request_id)
            if account and report.epoch == self.requests[request_id].num_preemptions:
                account.report = report
            else:
                self.ledger.stale_reports += 1
        return super().update_from_output(scheduler_output, model_runner_output)

    def _preempt_request(
        self, request: Request, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        self.ledger.preemptions += 1
        self._lost_tokens[request.request_id] = request.num_computed_tokens
        super()._preempt_request(request, timestamp, drop_stale_output)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        self._lost_tokens.pop(request.request_id, None)
        return super()._free_request(request, delay_free_blocks)

    # ---- figures -----------------------------------------------------------------------------

    def pages_by_request(self) -> dict[str, int]:
        """Pages held now by each request that holds any."""
        return {rid: len(blocks) for rid, blocks in self.pages.req_to_blocks.items() if blocks}

    @property
    def _total_pages(self) -> int:
        return self.pages.block_pool.num_gpu_blocks - 1  # the null block is never given out

    # ---- decisions ---------------------------------------------------------------------------

    def _new_account(self, request_id: str) -> Account:
        """What an admitted request gets: the policy's initial capacity, within ``max_pages``.

        Its promise covers the tokens that it must hold to be admitted at all, and no more than its
        longest possible length.
        """
        request = self.requests[request_id]
        block = self.pages.block_size
        capacity = self.policy.initial_pages(request.num_prompt_tokens)
        if self.budget_config.max_pages is not None:
            capacity = min(capacity, self.budget_config.max_pages)
        longest = min(request.num_prompt_tokens + request.max_tokens, self.max_model_len)
        promised = min(max(capacity, cdiv(request.num_tokens + 1, block)), cdiv(longest, block))
        return Account(capacity=capacity, promised=promised)

    def _decide(self) -> list[CompactionPlan]:
        """One pass over the running requests, in scheduling order."""
        plans: list[CompactionPlan] = []
        block = self.pages.block_size
        for request in self.running:
            account = self.pages.accounts.get(request.request_id)
            if account is None or not _decodes_one(request):
                continue  # no account: a streaming session between its inputs
            held = self.pages.pages(request.request_id)
            cached = request.num_computed_tokens - account.evicted
            if held > account.capacity:
                plan = self._compress(request, account, "over_capacity")
            elif cached < held * block:
                continue
            elif held < account.capacity:
                if self.pages.block_pool.get_num_free_blocks() > 0:
                    continue
                plan = self._compress(request, account, "pool")
            else:
                plan = self._at_boundary(request, account, held)
            if plan is not None:
                plans.append(plan)
        return plans

    def _at_boundary(self, request: Request, account: Account, held: int) -> CompactionPlan | None:
        """Ask the policy about a request that has filled its capacity; a plan if it must shrink."""
        spare = self._spare_pages()
        demand = self._fresh_demand(request, account)
        boundary = Boundary(pages=held, ordinal=account.boundaries, demand=demand)
        action = self.policy.decide(boundary, Pool(self._total_pages, spare))
        account.boundaries += 1
        account.report = None
        if action is Action.COMPRESS:
            return self._compress(request, account, "boundary")
        step = self.policy.pages.step_pages
        limit = self.budget_config.max_pages
        if limit is not None and held + step > limit:
            self.ledger.growths_refused += 1
            return self._compress(request, account, "max_pages")
        if spare < 1:
            self.ledger.growths_refused += 1
            return self._compress(request, account, "pool")
        account.capacity += step
        # The step's first page is as good as taken; the pass must not spend it twice.
        account.promised = max(account.promised, held + 1)
        self.ledger.growths += 1
        return None

    def _compress(self, request: Request, account: Account, reason: str) -> CompactionPlan | None:
        """Evict down to one step below the capacity; none if there is nothing to evict."""
        config, sizes = self.budget_config, self.policy.pages
        block = sizes.block_size
        request_id = request.request_id
        held = self.pages.pages(request_id)
        cached = request.num_computed_tokens - account.evicted
        full = min(held, account.capacity)
        survivors = (full - sizes.step_pages) * block
        prefix = config.sink
        prompt = request.num_prompt_tokens
        if config.protect_prompt and account.prompt_whole and prompt + config.recent <= survivors:
            prefix = max(prompt, config.sink)
        if survivors < prefix + config.recent:
            return None
        first = prefix // block
        swap = self.pages.swap_pages(
            request_id,
            first=first,
            wanted=survivors // block - first + 1,
            least=cdiv(max(first * block, config.sink) + config.recent, block) - first + 1,
            spare=max(self._spare_pages(), 0),
        )
        if swap is None:
            return None
        survivors = (first + len(swap.target) - 1) * block
        if survivors < prefix + config.recent:
            prefix = max(first * block, config.sink)
        account.prompt_whole &= prefix >= prompt
        account.evicted += cached - survivors
        account.promised = min(account.promised, account.capacity)
        self.ledger.by_reason[reason] += 1
        self.ledger.evicted_tokens += cached - survivors
        self.ledger.reclaimed_pages += max(swap.reclaimed, 0)
        self.ledger.copied_pages += swap.copied
        return CompactionPlan(
            request_id=request_id,
            kept=tuple(b.block_id for b in self.pages.req_to_blocks[request_id][:first]),
            source=swap.source,
            target=swap.target,
            tokens=cached,
            survivors=survivors,
            prefix=prefix,
            position=request.num_computed_tokens,
        )

    def _spare_pages(self) -> int:
        """Free pages that nobody has been promised."""
        return self.pages.block_pool.get_num_free_blocks() - self.pages.promised_pages()

    def _fresh_demand(self, request: Request, account: Account) -> Demand | None:
        """The measurement made just before this boundary, or none."""
        report = account.report
        if report and report.position == request.num_computed_tokens - MEASURE_LEAD:
            return report.demand
        if report:
            self.ledger.stale_reports += 1
        return None

    # ---- messages ----------------------------------------------------------------------------

    def _message(self, output: SchedulerOutput, plans: list[CompactionPlan]) -> StepMessage:
        """What the worker must know of this step. Called after vLLM has advanced the requests."""
        accounts = self.pages.accounts
        if not accounts:
            return StepMessage()
        evicted: dict[str, int] = {}
        measure: dict[str, int] = {}
        block = self.pages.block_size
        for request_id in output.num_scheduled_tokens:
            account = accounts[request_id]
            if account.evicted:
                evicted[request_id] = account.evicted
            if not self.policy.needs_demand:
                continue
            request = self.requests[request_id]
            cached = request.num_computed_tokens - account.evicted
            if (
                cached + MEASURE_LEAD == account.capacity * block
                and request.num_computed_tokens > request.num_prompt_tokens
            ):
                measure[request_id] = request.num_preemptions
        return StepMessage(plans=tuple(plans), evicted=evicted, measure=measure)

    def _count_recomputed(self, output: SchedulerOutput) -> None:
        """Add what resumed requests compute again: all they had, less their prefix-cache hit."""
        cached = output.scheduled_cached_reqs
        for request_id in cached.resumed_req_ids:
            hit = cached.num_computed_tokens[cached.req_ids.index(request_id)]
            self.ledger.recomputed_tokens += max(self._lost_tokens.pop(request_id, 0) - hit, 0)


def _decodes_one(request: Request) -> bool:
    """Whether exactly one token is due: not in prefill, not replaying after a preemption."""
    due = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
    return due == 1 and request.num_computed_tokens >= request.num_prompt_tokens


class GrowPageScheduler(BudgetMixin, Scheduler):
    """vLLM's synchronous scheduler with budgets."""


class GrowPageAsyncScheduler(BudgetMixin, AsyncScheduler):
    """vLLM's asynchronous scheduler with budgets."""

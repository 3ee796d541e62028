"""Capacity decisions: one pass over the requests that are due, before each step.

Compressions are carried out in the page accounting at once; the worker moves the contents before
the step's forward pass. Growth needs nothing here: vLLM finds that a request needs a page, and
takes it. What the pass sees to is that the page is there, so that nobody is preempted for want of
one.

The same pass decides for requests that are only watched, over a book of the pages that they would
hold (:mod:`growpage.engine.shadow`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vllm.utils.math_utils import cdiv
from vllm.v1.request import Request

from growpage.budget.config import BudgetConfig
from growpage.budget.demand import Demand
from growpage.budget.policies import Action, Boundary, Policy, Pool, measures_demand
from growpage.budget.sharing import (
    GIVER_RULES,
    Holding,
    pages_above_floors,
    pages_to_give,
)
from growpage.engine.accounts import Account, Stake, Tally
from growpage.engine.journal import Journal
from growpage.engine.limits import GrowthLimits
from growpage.engine.manager import PageSwap
from growpage.engine.measuring import MEASURE_LEAD, MeasurementQueue
from growpage.engine.messages import CompactionPlan, DemandReport

IDLE_SHARE = 0.5
"""Part of the pool that is spare while memory is idle: no step of any size that is usual takes it
all, and when less is spare there is time to measure."""

REPLAY_STEPS = 4
"""Capacity steps that a preempted request may exceed its capacity by while it is computed again."""


Resident = tuple[Request, Account]
"""A request that holds pages, and its account."""


@dataclass(frozen=True)
class Candidate:
    """The next request to be admitted."""

    request: Request
    hit_pages: int
    """Pages of its prompt that running requests hold already and share with it."""
    watermark: int
    """Pages that vLLM wants to remain free after its admission."""


class PageBook(Protocol):
    """The page accounting, as far as decisions need it: vLLM's, or that of watched requests."""

    accounts: dict[str, Account]
    tally: Tally
    block_size: int

    @property
    def total_pages(self) -> int:
        """Pages that requests can hold."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        ...

    def shared_pages(self, request_id: str) -> int:
        """The request's leading pages that others hold too: evicting from them frees nothing."""
        ...

    def leading_pages(self, request_id: str, count: int) -> tuple[int, ...]:
        """The request's first ``count`` pages."""
        ...

    def swap_pages(
        self, request_id: str, first: int, wanted: int, least: int, spare: int
    ) -> PageSwap | None:
        """Give the request ``wanted`` private pages in place of those from ``first`` on."""
        ...


class CapacityController:
    """Decides for the requests that it is given, and opens their accounts.

    Args:
        config: the budget.
        policy: made from it.
        pages: the page accounting.
        journal: where decisions are taken down.
        limits: on growth, whatever the policy wants.
        max_model_len: the logical length that no request exceeds, in tokens.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        config: BudgetConfig,
        policy: Policy,
        pages: PageBook,
        journal: Journal,
        limits: GrowthLimits,
        max_model_len: int,
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self.policy = policy
        self.pages = pages
        self.journal = journal
        self.ledger = journal.ledger
        self.limits = limits
        self.max_model_len = max_model_len
        self.clock = clock
        self.step = policy.pages.step_pages
        self.block = pages.block_size
        self.measuring = MeasurementQueue(config, policy, pages.accounts)
        self._measures = measures_demand(config)

    @property
    def spare_pages(self) -> int:
        """Free pages that nobody has been promised."""
        return self.pages.free_pages - self.pages.tally.promised

    # ---- admission ---------------------------------------------------------------------------

    def new_account(self, request: Request) -> Account:
        """What an admitted request gets: the policy's initial capacity, within ``max_pages``.

        Its promise covers the tokens that it must hold to be admitted at all, and no more than its
        longest possible length. A preempted request whose tokens exceed its capacity is compressed
        while they are computed again, so it need not hold them all at any time.
        """
        capacity = self.policy.initial_pages(request.num_prompt_tokens)
        capacity = min(capacity, self.config.max_pages or capacity, self.pages.total_pages)
        whole = cdiv(request.num_tokens + 1, self.block)
        replay_pages = None
        if request.num_output_tokens and whole > capacity:
            least = max(capacity, cdiv(request.num_prompt_tokens + 1, self.block))
            replay_pages = min(least + REPLAY_STEPS * self.step, self.pages.total_pages)
            if self.policy.shares and whole <= self.spare_pages:
                replay_pages = whole
            whole = min(whole, replay_pages)
        longest = cdiv(self._longest(request), self.block)
        promised = min(max(capacity, whole), longest)
        return Account(capacity=capacity, promised=promised, replay_pages=replay_pages)

    def chunk_limit(self, request: Request, computed: int) -> int | None:
        """Tokens that may be computed next; none if nothing speaks against any number.

        Only a request that is computed again after a preemption is limited: by the pages that it
        may hold meanwhile.
        """
        account = self.pages.accounts.get(request.request_id) or self.new_account(request)
        if account.replay_pages is None:
            return None
        return max(account.replay_pages * self.block - (computed - account.evicted), 0)

    def hit_limit(self, request: Request) -> int | None:
        """Cached tokens that a request may take from the prefix cache; none for any number."""
        account = self.new_account(request)
        if account.replay_pages is None or account.replay_pages * self.block > request.num_tokens:
            return None
        return max(account.replay_pages - REPLAY_STEPS * self.step, 0) * self.block

    # ---- the pass ----------------------------------------------------------------------------

    def decide(
        self,
        due: Sequence[Request],
        running: Callable[[], Iterable[Request]],
        candidate: Candidate | None = None,
    ) -> list[CompactionPlan]:
        """One pass over the requests that need a decision.

        Args:
            due: requests for which :meth:`passes_to_go` has run out, in scheduling order.
            running: all of them, in scheduling order. Asked for only if pages are short, so that it
                matters who can give some.
            candidate: the next request to be admitted, if a policy that shares has to make room.
        """
        self.measuring.begin_step(self._memory_is_idle(candidate))
        plans: list[CompactionPlan | None] = []
        settled: list[Resident] = []
        self.limits.begin_pass(self.pages.tally.by_tenant)
        for request in due:
            account = self.pages.accounts.get(request.request_id)
            if account is None:
                continue  # a streaming session between its inputs
            if is_replaying(request):
                plans.append(self._replay(request, account))
            elif self._is_settled(request):
                if account.replay_pages is not None:  # it has caught up
                    account.replay_pages = None
                    self.pages.tally.promise(account, min(account.promised, account.capacity))
                settled.append((request, account))
        if self.policy.shares:
            plans += self._share(settled, running, candidate)
        else:
            plans += [self._decide_one(request, account) for request, account in settled]
        return [plan for plan in plans if plan is not None]

    def passes_to_go(self, request: Request, account: Account) -> int:
        """Passes until the request may need a decision or a measurement; the next one is 1.

        To be asked after a step has been scheduled. A request computes one token in a step at most
        while it decodes, so that none comes to its boundary sooner; one that is held up on its way
        is looked at in vain, and asked again. Whatever else shortens the way (an admission, a
        compression, another stage of a rollout) must ask anew.
        """
        on_its_way = request.num_computed_tokens < request.num_prompt_tokens or _due(request) > 1
        over = self.config.max_pages if self.policy.shares else account.capacity
        if (
            on_its_way
            or account.replay_pages is not None
            or (over is not None and account.held > over)
        ):
            return 1
        cached = self._cached(request, account)
        room = account.held * self.block - cached
        if self._measures:
            ahead = self._tokens_to_boundary(request, account) - MEASURE_LEAD - 1
            if ahead >= 0:
                room = min(room, ahead)
        return 1 + max(room, 0)

    def _decide_one(self, request: Request, account: Account) -> CompactionPlan | None:
        """Let the policy decide for a request by itself."""
        held = account.held
        if held > account.capacity:
            return self._shrink(request, account, account.capacity, "over_capacity")
        if self._cached(request, account) < held * self.block:
            return None
        if held < account.capacity:
            full = self.pages.free_pages == 0
            return self._shrink(request, account, held, "pool") if full else None
        account.boundary_at = account.boundary_at or self.clock()
        plan = self._at_boundary(request, account, held)
        account.report = None  # it was for this boundary
        return plan

    def _at_boundary(self, request: Request, account: Account, held: int) -> CompactionPlan | None:
        """Ask the policy about a request that has filled its capacity; a plan if it must shrink."""
        spare = self.spare_pages
        demand = self._fresh_demand(request, account)
        boundary = Boundary(pages=held, ordinal=account.boundaries, demand=demand)
        action = self.policy.decide(boundary, Pool(self.pages.total_pages, spare))
        account.boundaries += 1
        if action is Action.COMPRESS:
            return self._shrink(request, account, held, "boundary")
        limit, refused = self.config.max_pages, None
        if limit is not None and held + self.step > limit:
            refused = "max_pages"
        elif spare < 1:
            refused = "pool"
        else:
            refused = self.limits.refusal(account, held, self.step)
        if refused is not None:
            return self._refuse(request, account, held, refused)
        account.capacity += self.step
        # The step's first page is as good as taken; the pass must not spend it twice.
        self.pages.tally.promise(account, max(account.promised, held + 1))
        self.limits.spend(account, self.step)
        cold = demand is None and self.policy.needs_demand
        self.journal.grown(request.request_id, "cold" if cold else "signal", held, demand)
        return None

    def _replay(self, request: Request, account: Account) -> CompactionPlan | None:
        """Make room for the next tokens of a request that is computed again."""
        limit = account.replay_pages
        if limit is None or self._cached(request, account) < limit * self.block:
            return None
        return self._shrink(request, account, min(account.capacity, limit), "replay")

    # ---- sharing -----------------------------------------------------------------------------

    def _share(
        self,
        settled: list[Resident],
        running: Callable[[], Iterable[Request]],
        candidate: Candidate | None,
    ) -> list[CompactionPlan | None]:
        """Settle between all requests who gives pages, so that all who need one can take it.

        Only those that are due can need one. All others are looked at only if there are too few.
        """
        plans: list[CompactionPlan | None] = []
        able: list[Resident] = []
        limited: set[str] = set()
        for request, account in settled:
            plan = self._hold_to_limits(request, account)
            if plan is None:
                able.append((request, account))
            else:
                plans.append(plan)
                limited.add(request.request_id)

        needed = self._claims(able) - self.spare_pages
        admitted = needed + self._admission_pages(candidate) if candidate is not None else needed
        if max(needed + self.config.watermark, admitted) > 0:
            reason = "pool" if needed > 0 or candidate is None else "admission"
            givers = self._givers(running(), limited)
            for (request, account), pages in self._agree(givers, needed, admitted):
                left = self._cached(request, account) - pages * self.block
                plans.append(self._compress(request, account, left, reason))

        plans += self._save_inside(able)
        return plans

    def _save_inside(self, able: list[Resident]) -> list[CompactionPlan]:
        """Let each one that nobody could give a page save inside its own pages."""
        plans = []
        claims = self._claims(able)
        for request, account in able:
            held = account.held
            if held < account.promised or not self._claims_a_page(request, account):
                continue
            plan = None
            if claims > self.spare_pages:
                plan = self._refuse(request, account, held, "pool")
            if plan is None:
                self.limits.spend(account, 1)
                demand = self._last_demand(account)
                self.journal.grown(request.request_id, "spare", held, demand)
            else:
                plans.append(plan)
                claims -= 1
        return plans

    def _hold_to_limits(self, request: Request, account: Account) -> CompactionPlan | None:
        """Compress a request that has reached a limit of its own, whatever memory there is."""
        held, most = account.held, self.config.max_pages
        claims = self._claims_a_page(request, account)
        if claims:
            account.boundary_at = account.boundary_at or self.clock()
        if most is not None and held > most:
            return self._shrink(request, account, most, "max_pages")
        if claims and held == most:
            return self._refuse(request, account, held, "max_pages")
        if not claims or held < account.promised:
            return None
        refused = self.limits.refusal(account, held, 1)
        return self._refuse(request, account, held, refused) if refused else None

    def _givers(self, running: Iterable[Request], limited: Container[str]) -> list[Resident]:
        """The requests that can be asked for pages: not those that a limit has compressed."""
        accounts = self.pages.accounts
        return [
            (request, account)
            for request in running
            if (account := accounts.get(request.request_id)) is not None
            and self._is_settled(request)
            and request.request_id not in limited
        ]

    def _agree(
        self, able: list[Resident], needed: int, admitted: int
    ) -> Iterable[tuple[Resident, int]]:
        """Who gives how many pages, where ``needed`` are wanting now, ``admitted`` for one more.

        Down to the floors for a page that somebody needs, for the watermark, and for one who waits
        if that is enough to admit it. If working sets have outgrown the pool, then for pages that
        are needed down to what was promised at admission.
        """
        rule = GIVER_RULES[self.config.giver]
        floors = [self._holding(request, account) for request, account in able]
        wanted = needed + self.config.watermark
        if wanted < admitted <= pages_above_floors(floors, self.block):
            wanted = admitted
        given = pages_to_give(floors, wanted, self.block, rule)
        if sum(given) < needed:
            promises = [
                held._replace(floor=(account.promised - self.step) * self.block)
                for held, (_, account) in zip(floors, able, strict=True)
            ]
            given = pages_to_give(promises, needed, self.block, rule, given)
        return [(able[i], pages) for i, pages in enumerate(given) if pages]

    def _holding(self, request: Request, account: Account) -> Holding:
        """What the request can give down to its floor."""
        prompt, computed = request.num_prompt_tokens, request.num_computed_tokens
        stake = account.stake
        if (
            stake is None
            or stake.report is not account.report
            or stake.prompt_tokens != prompt  # a streaming session's grows
        ):
            stake = account.stake = self._stake(prompt, account.report)
        # After a prefill the queries have only seen the prompt, so that young requests look cheap.
        old = computed - prompt >= self.config.young
        shared = self.pages.shared_pages(request.request_id) * self.block
        return Holding(
            tokens=computed - account.evicted,
            floor=max(stake.floor, shared + self.config.recent) if shared else stake.floor,
            losses=stake.losses if old else None,
            needed=stake.needed,
            evicted=account.evicted,
        )

    def _stake(self, prompt: int, report: DemandReport | None) -> Stake:
        """What a request with such a prompt needs, by its last measurement if there is any."""
        demand = report.demand if report else None
        floor = self.policy.floor_pages(prompt, demand)
        if self.config.max_pages is not None:
            floor = min(floor, self.config.max_pages)
        return Stake(
            report=report,
            prompt_tokens=prompt,
            floor=(floor - self.step) * self.block,
            losses=demand.losses if demand else None,
            needed=self.policy.needed_tokens(prompt, demand) if demand else None,
        )

    def _claims(self, able: list[Resident]) -> int:
        """Pages that the requests need for their next token, beyond those they were promised."""
        return sum(
            self._claims_a_page(request, account)
            for request, account in able
            if account.held >= account.promised
        )

    def _claims_a_page(self, request: Request, account: Account) -> bool:
        held = account.held
        return self._cached(request, account) == held * self.block

    def _admission_pages(self, candidate: Candidate) -> int:
        """Pages that a waiting request must find to be admitted."""
        promised = self.new_account(candidate.request).promised
        return promised - candidate.hit_pages + candidate.watermark

    # ---- one compression ---------------------------------------------------------------------

    def _refuse(
        self, request: Request, account: Account, held: int, reason: str
    ) -> CompactionPlan | None:
        """Compress a request that holds ``held`` full pages and may not take another."""
        plan = self._shrink(request, account, held, reason)
        self.journal.refused(request.request_id, reason, held, evicts=plan is not None)
        return plan

    def _shrink(
        self, request: Request, account: Account, pages: int, reason: str
    ) -> CompactionPlan | None:
        """Evict down to one step below ``pages`` full pages."""
        return self._compress(request, account, (pages - self.step) * self.block, reason)

    def _compress(
        self, request: Request, account: Account, survivors: int, reason: str
    ) -> CompactionPlan | None:
        """Evict down to ``survivors`` tokens; none if that is not possible."""
        config, block = self.config, self.block
        request_id = request.request_id
        demand = self._last_demand(account)
        held = account.held
        cached = self._cached(request, account)
        prompt = request.num_prompt_tokens
        whole_prompt = config.protect_prompt and account.prompt_whole and cached >= prompt
        prefix = config.sink
        shared = self.pages.shared_pages(request_id) * block
        if shared + config.recent <= survivors:
            prefix = max(shared, config.sink)
        if whole_prompt and prompt + config.recent <= survivors:
            prefix = max(prompt, prefix)
        if not prefix + config.recent <= survivors < cached:
            return None
        first = prefix // block
        swap = self.pages.swap_pages(
            request_id,
            first=first,
            wanted=survivors // block - first + 1,
            least=cdiv(max(first * block, config.sink) + config.recent, block) - first + 1,
            spare=max(self.spare_pages, 0),
        )
        if swap is None:
            return None
        if len(swap.target) < survivors // block - first + 1:
            survivors = (first + len(swap.target) - 1) * block
        if survivors < prefix + config.recent:
            prefix = max(first * block, config.sink)
        account.prompt_whole &= prefix >= prompt
        account.evicted += cached - survivors
        account.compressions += 1
        if account.replay_pages is None:
            self.pages.tally.promise(account, min(account.promised, account.capacity))
        self.ledger.reclaimed_pages += max(swap.reclaimed, 0)
        self.ledger.copied_pages += swap.copied
        self.journal.compressed(
            request_id,
            reason,
            before=held,
            after=first + len(swap.target),
            evicted=cached - survivors,
            demand=demand,
            loss=demand.loss_at(survivors, block) if demand else None,
        )
        return CompactionPlan(
            request_id=request_id,
            kept=self.pages.leading_pages(request_id, first),
            source=swap.source,
            target=swap.target,
            tokens=cached,
            survivors=survivors,
            prefix=prefix,
            position=request.num_computed_tokens,
        )

    # ---- facts about a request ---------------------------------------------------------------

    def _cached(self, request: Request, account: Account) -> int:
        return request.num_computed_tokens - account.evicted

    def _longest(self, request: Request) -> int:
        return min(request.num_prompt_tokens + request.max_tokens, self.max_model_len)

    def _is_settled(self, request: Request) -> bool:
        """Whether one token is due, that does not end the request: such a one is never computed.

        If so, it is not in prefill, and is not replaying after a preemption.
        """
        computed = request.num_computed_tokens
        return (
            computed >= request.num_prompt_tokens
            and _due(request) == 1
            and computed + 1 < self._longest(request)
        )

    def _tokens_to_boundary(self, request: Request, account: Account) -> int:
        """Tokens until the boundary before which the request is measured."""
        pages = account.held if self.policy.shares else account.capacity
        return pages * self.block - self._cached(request, account)

    def _last_demand(self, account: Account) -> Demand | None:
        return account.report.demand if account.report else None

    def _fresh_demand(self, request: Request, account: Account) -> Demand | None:
        """The measurement made just before this boundary, or none."""
        report = account.report
        if report and report.position == request.num_computed_tokens - MEASURE_LEAD:
            return report.demand
        if report:
            self.ledger.stale_reports += 1
            account.report = None
        return None

    def is_due_for_measurement(self, request: Request, account: Account) -> bool:
        """Whether the step that computed the request's last token is to measure its demand.

        To be asked once for each request of a step.
        """
        if request.num_computed_tokens <= request.num_prompt_tokens or is_replaying(request):
            return False
        computed, left = request.num_computed_tokens, self._tokens_to_boundary(request, account)
        return self.measuring.is_due(request.request_id, account, computed, left)

    def _memory_is_idle(self, candidate: Candidate | None) -> bool:
        """Whether memory is so far from short that what requests need is of no consequence."""
        spare = self.spare_pages
        return spare >= IDLE_SHARE * self.pages.total_pages and (
            candidate is None or self._admission_pages(candidate) <= spare
        )


def is_replaying(request: Request) -> bool:
    """Whether tokens that were generated before a preemption are still to be computed again."""
    return request.num_output_tokens > 0 and _due(request) > 1


def _due(request: Request) -> int:
    return request.num_tokens + request.num_output_placeholders - request.num_computed_tokens

"""Whose budget is enforced and whose is only watched, and the decisions for both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from vllm.v1.request import Request, RequestStatus

from growpage.budget.config import BudgetConfig
from growpage.budget.policies import Policy, make_policy
from growpage.budget.rollout import TENANT_FIELD, Mode, Origin
from growpage.engine.accounts import Account
from growpage.engine.boundary_calendar import BoundaryCalendar
from growpage.engine.capacity import Candidate, CapacityController, PageBook, is_replaying
from growpage.engine.journal import Journal
from growpage.engine.limits import GrowthLimits
from growpage.engine.manager import GrowPageManager
from growpage.engine.messages import CompactionPlan
from growpage.engine.observations import Observations
from growpage.engine.rollout import RolloutWatch
from growpage.engine.shadow import ShadowBook


class Enforcement:
    """Divides the running requests by the stage of the rollout.

    Args:
        config: the budget.
        policy: made from it.
        pages: the page accounting.
        rollout: the stage in force.
        observations: takes values for histograms.
        max_model_len: the logical length that no request exceeds, in tokens.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        config: BudgetConfig,
        policy: Policy,
        pages: GrowPageManager,
        rollout: RolloutWatch,
        observations: Observations,
        max_model_len: int,
        clock: Callable[[], float],
    ) -> None:
        self.rollout = rollout
        self.journals = Journal("enforce", observations), Journal("observe", observations)
        self._pages = pages

        def controller(
            book: PageBook, journal: Journal, policy: Policy = policy
        ) -> CapacityController:
            limits = GrowthLimits(lambda: rollout.current, clock)
            return CapacityController(config, policy, book, journal, limits, max_model_len, clock)

        self.controller = controller(pages, self.journals[0])
        self._shadow = ShadowBook(pages, self._shadow_account)
        # A policy of its own: what is only watched must not sway what is enforced.
        watching = make_policy(config, policy.pages.block_size)
        self._watcher = controller(self._shadow, self.journals[1], watching)
        self._calendar: BoundaryCalendar[Request] = BoundaryCalendar()
        self._watched: set[Request] = set()
        self.looked_at: list[Request] = []
        """Of the step: those that were due before it, and those admitted to it, in order."""

    @property
    def mode(self) -> Mode:
        """Of the stage; with ``enforce`` some requests may still be watched only."""
        return self.rollout.current.mode

    def holds_for(self, request: Request) -> bool:
        """Whether the request's budget is enforced."""
        account = self._pages.accounts.get(request.request_id)
        return account.enforced if account else self.rollout.enforces(origin_of(request))

    def new_account(self, request: Request) -> Account:
        """What an admitted request gets; one that is watched is promised nothing, as by vLLM."""
        origin = origin_of(request)
        if self.rollout.enforces(origin):
            account = self.controller.new_account(request)
        else:
            account = Account(capacity=0, promised=0, enforced=False)
        account.tenant = origin.tenant
        return account

    def account_of(self, request: Request) -> Account | None:
        """The account by which decisions about the request are taken."""
        account = self._pages.accounts.get(request.request_id)
        if account is None or account.enforced:
            return account
        return self._shadow.accounts.get(request.request_id)

    # ---- a step ------------------------------------------------------------------------------

    def decide(
        self, running: Sequence[Request], candidate: Candidate | None
    ) -> list[CompactionPlan]:
        """One pass before a step; plans for those whose budgets are enforced.

        It looks at requests that are due, and at all that are only watched: a rollout's first
        stages cost more than its last.
        """
        if self.rollout.look():
            self._reassign(running)
        due = self.looked_at = self._begin_pass()
        if not self.rollout.may_observe:
            return self.controller.decide(due, lambda: running, candidate)
        watched: list[Request] = []
        if self._watched:
            due = [request for request in due if request not in self._watched]
            watched = [r for r in running if r in self._watched and not is_replaying(r)]
        self._shadow.follow(watched)
        self._watcher.decide(watched, lambda: watched)
        return self.controller.decide(
            due, lambda: [r for r in running if r not in self._watched], candidate
        )

    def enter(self, request: Request) -> None:
        """The step has admitted the request."""
        self.looked_at.append(request)
        self._calendar.enter(request)
        if not self._pages.accounts[request.request_id].enforced:
            self._watched.add(request)

    def leave(self, request: Request) -> None:
        """The request has lost its cache: by its end, or a preemption."""
        self._calendar.leave(request)
        self._watched.discard(request)
        for controller in (self.controller, self._watcher):
            controller.measuring.forget(request.request_id)

    def to_measure(
        self, scheduled: Collection[str], requests: Mapping[str, Request]
    ) -> list[Request]:
        """Of the requests that are scheduled, those whose demand the step is to measure.

        To be asked once for each step.
        """
        if self._watched or self.controller.measuring.catches_up:
            asked = [requests[name] for name in scheduled]
        else:
            asked = [request for request in self.looked_at if request.request_id in scheduled]
        return [request for request in asked if self._is_due_for_measurement(request)]

    def end_step(self, compressed: Iterable[Request]) -> None:
        """File anew whoever was looked at in the step, or lost tokens in it."""
        for request in (*self.looked_at, *compressed):
            account = self._pages.accounts.get(request.request_id)
            if account is not None:
                self._calendar.file(request, self.controller.passes_to_go(request, account))

    def _begin_pass(self) -> list[Request]:
        """The requests that are due. Streaming sessions leave while they wait for input."""
        due = []
        for request in self._calendar.begin_pass():
            if request.status is RequestStatus.RUNNING:
                due.append(request)
            else:
                self._calendar.leave(request)
                self._watched.discard(request)
        return due

    def _is_due_for_measurement(self, request: Request) -> bool:
        account = self.account_of(request)
        if account is None:
            return False
        controller = self.controller if account.enforced else self._watcher
        return controller.is_due_for_measurement(request, account)

    @property
    def idle(self) -> bool:
        """Whether no measurement can matter for now: see :attr:`MeasurementQueue.idle`."""
        return self.controller.measuring.idle and not self.rollout.may_observe

    def _reassign(self, running: Sequence[Request]) -> None:
        """Put running requests where another stage of the rollout wants them.

        One that comes under its budget keeps what it holds and is compressed from there; one that
        leaves it gets nothing back that was evicted.
        """
        for request in running:
            account = self._pages.accounts.get(request.request_id)
            enforced = self.rollout.enforces(origin_of(request))
            if account is None or account.enforced == enforced:
                continue
            account.enforced, account.report, account.replay_pages = enforced, None, None
            account.capacity = 0
            self._pages.tally.promise(account, 0)
            if enforced:
                account.capacity = self.controller.new_account(request).capacity
                self._pages.tally.promise(account, min(account.capacity, account.held))
                self._watched.discard(request)
            else:
                self._watched.add(request)
        self._calendar.file_all()

    def _shadow_account(self, request: Request) -> Account:
        account = self._watcher.new_account(request)
        account.enforced, account.replay_pages = False, None
        account.evicted = self._pages.accounts[request.request_id].evicted
        account.tenant = origin_of(request).tenant
        return account


def origin_of(request: Request) -> Origin:
    """Whose request it is, as it says, and which adapter it uses."""
    sampling, lora = request.sampling_params, request.lora_request
    tenant = ((sampling and sampling.extra_args) or {}).get(TENANT_FIELD)
    return Origin(
        tenant=None if tenant is None else str(tenant), adapter=lora.lora_name if lora else None
    )

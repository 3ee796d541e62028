"""The same decisions by looking at every request before each step, and adding up all accounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from vllm.v1.request import Request

from growpage.budget.sharing import GIVER_RULES, pages_above_floors, pages_to_give
from growpage.engine.accounts import Account
from growpage.engine.capacity import Candidate, CapacityController, is_replaying
from growpage.engine.enforcement import Enforcement
from growpage.engine.measuring import MeasurementQueue
from growpage.engine.messages import CompactionPlan

Settled = list[tuple[Request, Account]]


def scan_fully(enforcement: Enforcement) -> None:
    """Let it decide by full scans from now on."""
    enforcement.controller = FullScan.like(enforcement.controller)
    enforcement._watcher = FullScan.like(enforcement._watcher)


class AsksEverybody(MeasurementQueue):
    """In every step, not only when somebody was put off."""

    @property
    def catches_up(self) -> bool:
        return True


class FullScan(CapacityController):
    """Asks nobody when a request is due."""

    @classmethod
    def like(cls, other: CapacityController) -> FullScan:
        scan = cls(
            other.config,
            other.policy,
            other.pages,
            other.journal,
            other.limits,
            other.max_model_len,
            other.clock,
        )
        scan.measuring = AsksEverybody(other.config, other.policy, other.pages.accounts)
        return scan

    @property
    def spare_pages(self) -> int:
        accounts = self.pages.accounts.values()
        return self.pages.free_pages - sum(max(a.promised - a.held, 0) for a in accounts)

    def decide(
        self,
        due: Sequence[Request],
        running: Callable[[], Iterable[Request]],
        candidate: Candidate | None = None,
    ) -> list[CompactionPlan]:
        self.measuring.begin_step(self._memory_is_idle(candidate))
        plans: list[CompactionPlan | None] = []
        settled: Settled = []
        held: Counter[str] = Counter()
        for account in self.pages.accounts.values():
            held[account.tenant or ""] += account.held
        self.limits.begin_pass(held)
        for request in running():
            account_of = self.pages.accounts.get(request.request_id)
            if account_of is None:
                continue
            if is_replaying(request):
                plans.append(self._replay(request, account_of))
            elif self._is_settled(request):
                if account_of.replay_pages is not None:
                    account_of.replay_pages = None
                    promised = min(account_of.promised, account_of.capacity)
                    self.pages.tally.promise(account_of, promised)
                settled.append((request, account_of))
        if self.policy.shares:
            plans += self._share_among(settled, candidate)
        else:
            plans += [self._decide_one(request, account) for request, account in settled]
        return [plan for plan in plans if plan is not None]

    def _share_among(
        self, settled: Settled, candidate: Candidate | None
    ) -> list[CompactionPlan | None]:
        plans: list[CompactionPlan | None] = []
        able: Settled = []
        for request, account in settled:
            plan = self._hold_to_limits(request, account)
            if plan is None:
                able.append((request, account))
            else:
                plans.append(plan)
        needed = self._claims(able) - self.spare_pages
        reason = "pool" if needed > 0 or candidate is None else "admission"
        given = self._agree_among(able, needed, candidate)
        for (request, account), pages in zip(able, given, strict=True):
            if pages:
                left = self._cached(request, account) - pages * self.block
                plans.append(self._compress(request, account, left, reason))
        plans += self._save_inside(able)
        return plans

    def _agree_among(self, able: Settled, needed: int, candidate: Candidate | None) -> list[int]:
        rule = GIVER_RULES[self.config.giver]
        floors = [self._holding(request, account) for request, account in able]
        wanted = needed + self.config.watermark
        if candidate is not None:
            admitted = needed + self._admission_pages(candidate)
            if admitted <= pages_above_floors(floors, self.block):
                wanted = max(wanted, admitted)
        given = pages_to_give(floors, wanted, self.block, rule)
        if sum(given) >= needed:
            return given
        promises = [
            held._replace(floor=(account.promised - self.step) * self.block)
            for held, (_, account) in zip(floors, able, strict=True)
        ]
        return pages_to_give(promises, needed, self.block, rule, given)

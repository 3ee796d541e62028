"""Limits on growth that an operator sets for a rollout, whatever the policy wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from growpage.budget.rollout import Rollout
from growpage.engine.accounts import Account


class GrowthLimits:
    """How fast requests may grow, and how many pages tenants may hold.

    Args:
        rollout: the stage in force.
        clock: seconds, monotonic.
    """

    def __init__(self, rollout: Callable[[], Rollout], clock: Callable[[], float]) -> None:
        self._rollout = rollout
        self._clock = clock
        self._held: dict[str, int] = {}
        self._quotas: dict[str, int] = {}
        self._rate: float | None = None

    def begin_pass(self, held: Mapping[str, int]) -> None:
        """Take note of what the requests of each tenant hold, in pages."""
        stage = self._rollout()
        self._quotas, self._rate = stage.quotas, stage.max_growth_rate
        self._held = {tenant: held.get(tenant, 0) for tenant in self._quotas}

    def refusal(self, account: Account, held: int, pages: int) -> str | None:
        """Why a request that holds ``held`` pages may not take ``pages`` more, or none."""
        quota = self._quotas.get(account.tenant) if account.tenant is not None else None
        if quota is not None and self._held[account.tenant or ""] + pages > quota:
            return "quota"
        if self._rate is not None and self._credit(account, held, pages) < pages:
            return "growth_rate"
        return None

    def spend(self, account: Account, pages: int) -> None:
        """The request takes ``pages`` more."""
        account.growth_credit -= pages
        if account.tenant in self._held:
            self._held[account.tenant] += pages

    def _credit(self, account: Account, held: int, least: int) -> float:
        """Pages that the request may grow by now: a bucket that fills with time."""
        assert self._rate is not None
        now = self._clock()
        most = max(self._rate * held, least)
        if account.credited_at is None:
            account.growth_credit = most
        else:
            gained = self._rate * held * (now - account.credited_at)
            account.growth_credit = min(account.growth_credit + gained, most)
        account.credited_at = now
        return account.growth_credit

"""Whose demand a step is to measure."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from growpage.budget.config import BudgetConfig
from growpage.budget.policies import Policy
from growpage.budget.sharing import MEASURING_GIVERS
from growpage.engine.accounts import Account

MEASURE_LEAD = 1
"""Tokens before a boundary at which demand is measured: under async scheduling a report arrives one
step late, and measuring one token early makes it arrive in time."""

MEASURED_AT_ONCE = 4
"""Requests that a policy that shares measures in one step, or if that is more, twice as many as
come to a boundary in a step on average. Others follow in the next steps."""

MEASURED_EVERY = 128
"""Tokens between two measurements of a request where only floors depend on them: a working set
changes slowly, and with pages of 32 tokens three of four measurements are saved."""


class MeasurementQueue:
    """Puts measurements off that are too many for one step, and all of them while memory is idle.

    A policy that shares needs no figures of this very boundary, nor of every boundary if only
    floors depend on them; and while memory is idle no floor matters. What was put off is made up
    for, as soon as memory has not been idle for so long that the query summaries can be trusted
    again. Any other policy decides by the boundary, before which everybody is measured.

    Args:
        config: the budget.
        policy: made from it.
        accounts: of all requests that hold pages, by their ids.
    """

    def __init__(
        self, config: BudgetConfig, policy: Policy, accounts: Mapping[str, Account]
    ) -> None:
        self._accounts = accounts
        self._block = policy.pages.block_size
        self._warmup = config.warmup
        self._puts_off = policy.shares
        # Else figures are wanted for themselves, or for the losses at the limit.
        self._rests = policy.shares and not config.track_entropy and config.max_pages is None
        by_losses = config.giver in MEASURING_GIVERS or config.floor_loss is not None
        self._least_gap = MEASURED_EVERY if self._rests and not by_losses else 0
        self._steps_awake: float = inf
        self._left_in_step = 0
        self._waiting: set[str] = set()

    def begin_step(self, memory_is_idle: bool) -> None:
        """Begin a step, before which memory is or is not far from short."""
        on_average = len(self._accounts) // self._block
        self._left_in_step = max(MEASURED_AT_ONCE, 2 * on_average)
        if self._rests:
            self._steps_awake = 0 if memory_is_idle else self._steps_awake + 1

    @property
    def idle(self) -> bool:
        """Whether memory is so far from short that what requests need is of no consequence."""
        return self._steps_awake == 0

    def is_due(self, request_id: str, account: Account, computed: int, left: int) -> bool:
        """Whether a request of the step, ``left`` tokens before its boundary, is measured in it.

        To be asked once for each request of a step; it has then computed ``computed`` tokens.
        """
        due = left == MEASURE_LEAD and not self._is_recent(account, computed)
        if not self._puts_off or not (due or account.unmeasured):
            return due
        now = not self._cold and self._left_in_step > 0
        account.unmeasured = not now
        if now:
            self._left_in_step -= 1
        else:
            self._waiting.add(request_id)
        return now

    @property
    def catches_up(self) -> bool:
        """Whether to ask about all requests of a step, for measurements that were put off."""
        if self._cold or not self._waiting:
            return False
        accounts = self._accounts
        self._waiting = {
            name for name in self._waiting if name in accounts and accounts[name].unmeasured
        }
        return bool(self._waiting)

    def forget(self, request_id: str) -> None:
        """The request has lost its cache."""
        self._waiting.discard(request_id)

    def _is_recent(self, account: Account, computed: int) -> bool:
        """Whether the last measurement is still good after ``computed`` tokens."""
        report = account.report
        return report is not None and computed - report.position < self._least_gap

    @property
    def _cold(self) -> bool:
        """Whether query summaries have lapsed, or are not to be trusted again yet."""
        return self._rests and self._steps_awake <= self._warmup

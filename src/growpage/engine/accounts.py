"""What the scheduler knows of admitted requests' caches, and sums over them kept as they change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from growpage.engine.messages import DemandReport


class Stake(NamedTuple):
    """What a request needs of its cache, by its last measurement."""

    report: DemandReport | None
    """The measurement."""
    prompt_tokens: int
    floor: int
    """Tokens that it is left with at least."""
    losses: tuple[float, ...] | None
    """Predicted loss if 1, 2, ... pages fewer were kept; none if not known."""
    needed: int | None
    """Tokens of its working set, and of its prompt if that is protected; none if not known."""


@dataclass
class Account:
    """What the scheduler knows of one admitted request's cache."""

    capacity: int
    """Pages that the request may fill before its next boundary."""
    promised: int
    """Pages set aside at admission; growth beyond them is not promised. Once the account is open,
    changed by :meth:`Tally.promise`."""
    held: int = 0
    """Pages that the request holds. Once the account is open, changed by :meth:`Tally.hold`."""
    evicted: int = 0
    """Tokens evicted so far: logical minus physical length."""
    boundaries: int = 0
    """Boundaries met so far."""
    prompt_whole: bool = True
    """Whether the first pages still hold the prompt, token for token."""
    replay_pages: int | None = None
    """Pages that it may hold while it is computed again after a preemption; none for any number."""
    report: DemandReport | None = None
    """The last measurement."""
    stake: Stake | None = field(default=None, compare=False)
    """What was last worked out from a measurement; of another one it is out of date."""
    unmeasured: bool = False
    """Whether a later measurement was put off: memory was idle, or too many were due at once."""
    enforced: bool = True
    """Whether its budget is enforced; if not, it is served as by plain vLLM, promised nothing."""
    tenant: str | None = None
    """Whose request it is, if it says so."""
    compressions: int = 0
    peak_pages: int = 0
    """The most pages held at once."""
    boundary_at: float | None = None
    """When it was seen to have filled its pages, in seconds; none if they have room."""
    growth_credit: float = 0.0
    """Pages that a rollout's growth rate lets it take."""
    credited_at: float | None = None
    """When the credit was last worked out, in seconds; none before."""


class Tally:
    """Sums over the open accounts of a book, so that nobody has to walk over all of them."""

    def __init__(self) -> None:
        self.promised = 0
        """Pages that requests have been promised and do not hold yet."""
        self.by_tenant: Counter[str] = Counter()
        """Pages that the requests of each tenant hold; of those that say whose they are."""

    def hold(self, account: Account, pages: int) -> None:
        """The account's request holds ``pages`` from now on."""
        self.close(account)
        account.held = pages
        account.peak_pages = max(account.peak_pages, pages)
        self.open(account)

    def promise(self, account: Account, pages: int) -> None:
        """The account's request is promised ``pages`` in all from now on."""
        self.close(account)
        account.promised = pages
        self.open(account)

    def open(self, account: Account) -> None:
        """Take in an account."""
        self.promised += max(account.promised - account.held, 0)
        if account.tenant is not None:
            self.by_tenant[account.tenant] += account.held

    def close(self, account: Account) -> None:
        """Take it out again."""
        self.promised -= max(account.promised - account.held, 0)
        if account.tenant is not None:
            self.by_tenant[account.tenant] -= account.held
            if not self.by_tenant[account.tenant]:
                del self.by_tenant[account.tenant]

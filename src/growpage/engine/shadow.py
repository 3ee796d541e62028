"""Requests that are only watched: the pages that they would hold under their budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllm.utils.math_utils import cdiv
from vllm.v1.request import Request

from growpage.engine.accounts import Account, Tally
from growpage.engine.manager import GrowPageManager, PageSwap


class ShadowBook:
    """Counts the pages that watched requests would hold, beside those that all requests hold.

    Each compression that is decided over this book lowers its own counts and nothing else, so that
    the next decision is the one that would have followed. What it does not follow is the time that
    a request would have gained by not waiting or not being preempted.

    Args:
        real: the pages as they are.
        new_account: opens the account of a request that is first seen.
    """

    def __init__(self, real: GrowPageManager, new_account: Callable[[Request], Account]) -> None:
        self.accounts: dict[str, Account] = {}
        self.tally = Tally()
        self.block_size: int = real.block_size
        self._real = real
        self._new_account = new_account
        self._epochs: dict[str, int] = {}
        self._saved = 0
        """Pages that watched requests hold and would not hold."""

    def follow(self, watched: Sequence[Request]) -> None:
        """Take over the requests that are watched now, and forget all others.

        One that was preempted starts afresh.
        """
        present = {request.request_id: request.num_preemptions for request in watched}
        for name in [name for name in self.accounts if self._epochs[name] != present.get(name)]:
            self.tally.close(self.accounts.pop(name))
            del self._epochs[name]
        self._saved = sum(
            self._real.pages(name) - account.held for name, account in self.accounts.items()
        )
        for request in watched:
            name = request.request_id
            account = self.accounts.get(name)
            if account is None:
                account = self.accounts[name] = self._new_account(request)
                self._epochs[name] = request.num_preemptions
                self._saved += self._real.pages(name)
                self.tally.open(account)
            would_hold = cdiv(request.num_computed_tokens - account.evicted, self.block_size)
            if would_hold > account.held:
                self._hold(account, would_hold)

    @property
    def total_pages(self) -> int:
        """Pages that requests can hold."""
        return self._real.total_pages

    @property
    def free_pages(self) -> int:
        """Pages that would be free."""
        return self._real.free_pages + self._saved

    def shared_pages(self, request_id: str) -> int:
        """The request's leading pages that others hold too, which are the same in truth."""
        return self._real.shared_pages(request_id)

    def leading_pages(self, request_id: str, count: int) -> tuple[int, ...]:
        """The request's first ``count`` pages, which are the same in truth."""
        return self._real.leading_pages(request_id, count)

    def swap_pages(
        self, request_id: str, first: int, wanted: int, least: int, spare: int
    ) -> PageSwap | None:
        """Count the request as one that holds ``first + wanted`` pages; nothing is moved."""
        account = self.accounts[request_id]
        before, after = account.held, first + wanted
        self._hold(account, after)
        return PageSwap(source=(), target=(-1,) * wanted, copied=0, reclaimed=before - after)

    def _hold(self, account: Account, pages: int) -> None:
        self._saved += account.held - pages
        self.tally.hold(account, pages)

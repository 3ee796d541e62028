"""Requests that are only watched: the pages that they would hold under their budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllm.utils.math_utils import cdiv
from vllm.v1.request import Request

from growpage.engine.manager import Account, GrowPageManager, PageSwap


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
        self.block_size: int = real.block_size
        self._real = real
        self._new_account = new_account
        self._held: dict[str, int] = {}
        self._epochs: dict[str, int] = {}

    def follow(self, watched: Sequence[Request]) -> None:
        """Take over the requests that are watched now, and forget all others.

        One that was preempted starts afresh.
        """
        present = {request.request_id: request.num_preemptions for request in watched}
        for name in [name for name in self.accounts if self._epochs[name] != present.get(name)]:
            del self.accounts[name], self._held[name], self._epochs[name]
        for request in watched:
            name = request.request_id
            if name not in self.accounts:
                self.accounts[name] = self._new_account(request)
                self._held[name] = 0
                self._epochs[name] = request.num_preemptions
            cached = request.num_computed_tokens - self.accounts[name].evicted
            self._held[name] = max(self._held[name], cdiv(cached, self.block_size))

    @property
    def total_pages(self) -> int:
        """Pages that requests can hold."""
        return self._real.total_pages

    @property
    def free_pages(self) -> int:
        """Pages that would be free."""
        saved = sum(self._real.pages(name) - held for name, held in self._held.items())
        return self._real.free_pages + saved

    def pages(self, request_id: str) -> int:
        """Pages that the request would hold."""
        return self._held.get(request_id, 0)

    def leading_pages(self, request_id: str, count: int) -> tuple[int, ...]:
        """The request's first ``count`` pages, which are the same in truth."""
        return self._real.leading_pages(request_id, count)

    def promised_pages(self) -> int:
        """Free pages that would have been promised."""
        return sum(
            max(account.promised - self._held[name], 0) for name, account in self.accounts.items()
        )

    def swap_pages(
        self, request_id: str, first: int, wanted: int, least: int, spare: int
    ) -> PageSwap | None:
        """Count the request as one that holds ``first + wanted`` pages; nothing is moved."""
        before, after = self._held[request_id], first + wanted
        self._held[request_id] = after
        return PageSwap(source=(), target=(-1,) * wanted, copied=0, reclaimed=before - after)

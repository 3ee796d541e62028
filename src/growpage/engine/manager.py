"""Page accounting: a request needs pages for the tokens it holds, not for its logical length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from growpage.engine.accounts import Account, Tally


@dataclass(frozen=True)
class PageSwap:
    """How a compression may rewrite a request's pages without touching anyone else's."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    copied: int
    """Target pages that replace a shared or cached one."""
    reclaimed: int
    """Pages given back to the pool, net of those taken."""


class GrowPageManager(FullAttentionManager):
    """vLLM's manager of full-attention pages, with evicted tokens deducted.

    The decisions are the scheduler's: it says what a request is promised when it is admitted
    (``new_account``, unset as long as nothing is ever compressed) and calls :meth:`swap_pages` for
    each one that it compresses. An account lives from the first allocation until the pages are
    freed: by the end, an abort or a preemption.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accounts: dict[str, Account] = {}
        self.tally = Tally()
        self.new_account: Callable[[str], Account] | None = None
        self.admit_pages = 0
        """Pages that each request could still hold if the pool were shared out equally; one more
        that would leave fewer has to wait."""
        self.pages_allocated = 0
        """Pages taken from the pool since the start."""

    # ---- what the scheduler asks -------------------------------------------------------------

    @property
    def total_pages(self) -> int:
        """Pages that requests can hold: vLLM's null block is never given out."""
        return int(self.block_pool.num_gpu_blocks) - 1

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds; those that only the prefix cache knows included."""
        return int(self.block_pool.get_num_free_blocks())

    def pages(self, request_id: str) -> int:
        """Pages that the request holds."""
        return len(self.req_to_blocks.get(request_id, ()))

    def cached_pages(self) -> list[int]:
        """Pages that nobody holds and that the prefix cache still knows."""
        return [
            block.block_id
            for block in self.block_pool.blocks
            if block.ref_cnt == 0 and block.block_hash is not None
        ]

    def shared_pages(self, request_id: str) -> int:
        """The request's leading pages that others hold too."""
        blocks = self.req_to_blocks.get(request_id, ())
        return next((i for i, block in enumerate(blocks) if block.ref_cnt < 2), len(blocks))

    def leading_pages(self, request_id: str, count: int) -> tuple[int, ...]:
        """The request's first ``count`` pages."""
        return tuple(block.block_id for block in self.req_to_blocks[request_id][:count])

    @property
    def crowded(self) -> bool:
        """Whether one more request would leave each too few pages; never if it would be alone."""
        residents = len(self.accounts)
        return residents > 0 and self.total_pages // (residents + 1) < self.admit_pages

    def swap_pages(
        self, request_id: str, first: int, wanted: int, least: int, spare: int
    ) -> PageSwap | None:
        """Give the request ``wanted`` private, uncached pages in place of those from ``first`` on.

        A page that others share is left to them. A page of its own that the prefix cache knows is
        exchanged for a free one, so that the prefix stays hittable, and is dropped from the prefix
        cache only when no page is spare.

        Args:
            request_id: the request to compress.
            first: leading pages that stay as they are.
            wanted: pages to have after them.
            least: fewer pages than this are of no use.
            spare: pages that may be taken from the pool.

        Returns:
            The swap, with fewer than ``wanted`` pages if no more can be had, or none, and nothing
            changed, if not even ``least`` can.
        """
        blocks = self.req_to_blocks[request_id]
        old = blocks[first:]
        target = [block for block in old if self.block_pool.is_block_writable(block)][:wanted]
        cached = [block for block in old if block.ref_cnt == 1 and block.block_hash is not None]
        fresh = min(wanted - len(target), spare)
        uncached = cached[: wanted - len(target) - fresh]
        if len(target) + fresh + len(uncached) < least:
            return None
        for block in uncached:
            self.block_pool._maybe_evict_cached_block(block)
        new = self.block_pool.get_new_blocks(fresh)
        self.pages_allocated += len(new)
        target = [*target, *uncached, *new]
        kept = {block.block_id for block in target}
        given = [block for block in old if block.block_id not in kept]
        blocks[first:] = target
        self.tally.hold(self.accounts[request_id], len(blocks))
        # Reversed as vLLM frees a request: its last page is the first to be used again.
        self.block_pool.free_blocks(reversed(given))
        return PageSwap(
            source=tuple(block.block_id for block in old),
            target=tuple(block.block_id for block in target),
            copied=len(uncached) + len(new),
            reclaimed=sum(block.ref_cnt == 0 for block in given) - len(new),
        )

    # ---- what vLLM asks ----------------------------------------------------------------------

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        prefill_end: int = 0,
    ) -> int:
        """Pages to take for ``num_tokens`` logical tokens. vLLM calls it often: no side effects."""
        account = None
        if apply_admission_cap and self.new_account:
            account = self.new_account(request_id)
            if account.replay_pages is not None:
                num_tokens = min(num_tokens, account.replay_pages * self.block_size)
        needed = super().get_num_blocks_to_allocate(
            request_id,
            num_tokens - self._evicted(request_id),
            new_computed_blocks,
            total_computed_tokens,
            num_local_computed_tokens,
            num_tokens_main_model,
            apply_admission_cap,
            prefill_end,
        )
        if account is not None and self.accounts:
            # The admission gate: beside its own tokens the request must be able to fill what it is
            # promised, and so must everyone admitted before. One that would be alone is let in if
            # its tokens fit.
            more = account.promised - cdiv(num_tokens, self.block_size)
            needed += max(more, 0) + self.tally.promised
        if account is not None and account.enforced and self.crowded:
            return max(needed, self.total_pages + 1)  # more than there are
        return needed

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        """Take pages for ``num_tokens`` logical tokens. Most calls find that there are enough."""
        account = self.accounts.get(request_id)
        if account is None and self.new_account:
            account = self.accounts[request_id] = self.new_account(request_id)
            self.tally.open(account)
            self.tally.hold(account, self.pages(request_id))
        if account is not None:
            num_tokens -= account.evicted
        taken = super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
        if taken:
            self.pages_allocated += len(taken)
            if account is not None:
                self.tally.hold(account, self.pages(request_id))
        return taken

    def cache_blocks(
        self,
        request: Request,
        num_tokens: int,
        retention_interval: int | None = None,
        *,
        replay_boundaries: Sequence[int],
    ) -> None:
        """Register full pages in the prefix cache, until the request is first compressed."""
        account = self.accounts.get(request.request_id)
        if account is None or account.evicted == 0:
            super().cache_blocks(
                request, num_tokens, retention_interval, replay_boundaries=replay_boundaries
            )

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Close the account: a request that comes back starts afresh."""
        account = self.accounts.pop(request_id, None)
        if account is not None:
            self.tally.close(account)
        return super().pop_blocks_for_free(request_id)

    def _evicted(self, request_id: str) -> int:
        account = self.accounts.get(request_id)
        return account.evicted if account else 0

"""Exchanging pages for a compression: every mix of private, cached and shared pages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id

from growpage.engine.accounts import Account
from growpage.engine.manager import GrowPageManager
from growpage.engine.spec import GrowPageSpec

BLOCK, POOL = 4, 12
STATES = ("private", "cached", "shared", "shared and cached")


def manager_with(states: list[str], free: int) -> GrowPageManager:
    """A manager whose request ``r`` holds pages in the given states; ``free`` pages are left."""
    pool = BlockPool(
        num_gpu_blocks=POOL + 1,
        enable_caching=True,
        hash_block_size=BLOCK,
        enable_kv_cache_events=False,
    )
    spec = GrowPageSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    manager = GrowPageManager(
        spec, block_pool=pool, enable_caching=True, kv_cache_group_id=0, scheduler_block_size=BLOCK
    )
    blocks = pool.get_new_blocks(len(states))
    for index, (block, state) in enumerate(zip(blocks, states, strict=True)):
        if "cached" in state:
            key = make_block_hash_with_group_id(BlockHash(bytes([index]) * 32), 0)
            pool._insert_block_hash(key, block, BLOCK)
    shared = [
        block for block, state in zip(blocks, states, strict=True) if state.startswith("shared")
    ]
    pool.touch(shared)
    manager.req_to_blocks["r"] = list(blocks)
    manager.req_to_blocks["other"] = shared
    manager.accounts["r"] = Account(capacity=len(states), promised=0)
    elsewhere = pool.get_num_free_blocks() - free
    if elsewhere > 0:
        manager.req_to_blocks["elsewhere"] = pool.get_new_blocks(elsewhere)
    return manager


@settings(deadline=None, derandomize=True, database=None)
@given(
    states=st.lists(st.sampled_from(STATES), min_size=1, max_size=6),
    free=st.integers(0, 6),
    data=st.data(),
)
def test_a_swap_writes_nobody_elses_page_and_loses_none(
    states: list[str], free: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(states) - 1))
    wanted = data.draw(st.integers(1, len(states) - first))
    least = data.draw(st.integers(1, wanted))
    manager = manager_with(states, free)
    pool = manager.block_pool
    old = list(manager.req_to_blocks["r"])
    shared = set(map(id, manager.req_to_blocks["other"]))
    free_before = pool.get_num_free_blocks()
    own = sum(id(block) not in shared for block in old[first:])
    swap = manager.swap_pages("r", first, wanted, least, spare=free_before)
    new = manager.req_to_blocks["r"]
    if swap is None:
        assert own + free_before < least
        assert new == old
        assert pool.get_num_free_blocks() == free_before
        return
    assert new[:first] == old[:first]
    targets = new[first:]
    assert len(targets) == min(wanted, own + free_before)
    assert [block.block_id for block in targets] == list(swap.target)
    assert [block.block_id for block in old[first:]] == list(swap.source)
    assert len(set(swap.target)) == len(swap.target)
    for block in targets:
        assert block.ref_cnt == 1
        assert block.block_hash is None
    for block in manager.req_to_blocks["other"]:
        assert block.ref_cnt == 1 + (block in new)
        assert block not in targets
    assert pool.get_num_free_blocks() == free_before + swap.reclaimed
    # A prefix stays known unless its page had to be used.
    forgotten = [
        block
        for block, state in zip(old, states, strict=True)
        if "cached" in state and block.block_hash is None
    ]
    assert all(block in targets for block in forgotten)
    if len(targets) - sum(s == "private" for s in states[first:]) <= free_before:
        assert forgotten == []


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_cached_pages_are_exchanged_as_long_as_pages_are_spare(spare: int) -> None:
    manager = manager_with(["cached"] * 3, free=4)
    swap = manager.swap_pages("r", 0, 3, 3, spare=spare)
    assert swap is not None
    assert (swap.copied, swap.reclaimed) == (3, 0)
    known = [block for block in manager.block_pool.blocks if block.block_hash is not None]
    assert len(known) == spare


@pytest.mark.parametrize(
    ("residents", "admit_pages", "crowded"),
    [(0, 100, False), (1, 6, False), (1, 7, True), (2, 4, False), (2, 5, True), (5, 0, False)],
)
def test_crowded_is_when_one_more_would_leave_each_too_few(
    residents: int, admit_pages: int, crowded: bool
) -> None:
    manager = manager_with([], free=POOL)
    manager.accounts = {str(n): Account(capacity=2, promised=2) for n in range(residents)}
    manager.admit_pages = admit_pages
    assert manager.total_pages == POOL
    assert manager.crowded is crowded

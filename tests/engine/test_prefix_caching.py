"""Prefix caching on: pages that others can see are never written, and stay hittable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from growpage.engine.messages import CompactionPlan
from tests.engine.engines import PAGE, Engine, StartEngine, prompt_of

pytestmark = pytest.mark.engine

PREFIX = prompt_of(3 * PAGE)
LONG = [*PREFIX, *prompt_of(10, seed=1)]  # generates past its budget, and so is compressed
SHORT = [*PREFIX, *prompt_of(15, seed=2)]  # stays within it
BUDGET = 192


@pytest.fixture(params=[True, False], ids=["prompt-protected", "prompt-evictable"])
def budgeted(request: pytest.FixtureRequest, start_engine: StartEngine) -> Engine:
    budget = {"policy": "fixed", "budget": BUDGET, "protect_prompt": request.param}
    return start_engine(budget, pages=64, enable_prefix_caching=True)


@pytest.fixture
def full(start_engine: StartEngine) -> Engine:
    return start_engine({"policy": "full"}, pages=64, enable_prefix_caching=True)


def warm(engine: Engine) -> None:
    """Start from a prefix cache that holds just the prefix."""
    assert engine.scheduler.kv_cache_manager.reset_prefix_cache()
    engine.generate([[*PREFIX, 60]], 1)


@contextmanager
def guarded(engine: Engine) -> Iterator[list[CompactionPlan]]:
    """Check, as each plan is carried out, that its targets are its request's alone."""
    plans: list[CompactionPlan] = []
    adopt = engine.runner._adopt_pages

    def check(plan: CompactionPlan) -> None:
        adopt(plan)
        plans.append(plan)
        held = [b.block_id for b in engine.scheduler.pages.req_to_blocks[plan.request_id]]
        assert held[: len(plan.kept) + len(plan.target)] == [*plan.kept, *plan.target]
        for page in plan.target:
            block = engine.pool.blocks[page]
            assert block.ref_cnt == 1
            assert block.block_hash is None
        for other, blocks in engine.scheduler.pages.req_to_blocks.items():
            if other != plan.request_id:
                assert not {b.block_id for b in blocks} & set(plan.target)

    engine.runner._adopt_pages = check
    try:
        yield plans
    finally:
        del engine.runner._adopt_pages


def prefix_pages(engine: Engine) -> torch.Tensor:
    """What the cached prefix holds, through the prefix cache's own look-up."""
    blocks = [
        block
        for block in engine.pool.blocks
        if block.block_hash is not None and block.block_hash_num_tokens <= len(PREFIX)
    ]
    blocks.sort(key=lambda block: block.block_hash_num_tokens)
    assert len(blocks) == 3
    return engine.runner.kv_caches[0][[block.block_id for block in blocks]].clone()


def test_a_request_that_shares_pages_is_not_disturbed(budgeted: Engine, full: Engine) -> None:
    results = {}
    for name, engine in (("full", full), ("budgeted", budgeted)):
        warm(engine)
        before = prefix_pages(engine)
        with guarded(engine) as plans:
            results[name] = engine.generate([LONG, SHORT], 80)[1]
            engine.generate([LONG], 200)
        assert bool(plans) == (name == "budgeted")
        assert torch.equal(prefix_pages(engine), before), "a cached page was written"
    assert results["budgeted"] == results["full"]


def test_sharing_with_one_that_is_compressed_meanwhile(budgeted: Engine, full: Engine) -> None:
    """The long request is compressed while the short one still attends to the shared pages."""
    results = {}
    for name, engine in (("full", full), ("budgeted", budgeted)):
        warm(engine)
        with guarded(engine) as plans:
            # Its longer prompt takes LONGER past its budget while SHORT is within it.
            longer = [*LONG, *prompt_of(60, seed=3)]
            results[name] = engine.generate([longer, SHORT], 70)[1]
        if name == "budgeted":
            assert len(plans[0].kept) == 3, "evicting from shared pages would free nothing"
        assert bool(plans) == (name == "budgeted")
    assert results["budgeted"] == results["full"]


def test_a_later_request_with_the_same_prompt(budgeted: Engine, full: Engine) -> None:
    results = {}
    for name, engine in (("full", full), ("budgeted", budgeted)):
        warm(engine)
        engine.generate([LONG], 200)
        results[name] = engine.generate([LONG], 60)
    assert results["budgeted"] == results["full"]


def test_no_generated_page_is_registered_after_a_compression(budgeted: Engine) -> None:
    warm(budgeted)
    with guarded(budgeted) as plans:
        budgeted.generate([LONG], 300)
    assert plans
    known = [b.block_hash_num_tokens for b in budgeted.pool.blocks if b.block_hash is not None]
    assert max(known) <= BUDGET


def test_a_pool_without_a_free_page(start_engine: StartEngine) -> None:
    """Every page of the pool is the request's own and cached: they are dropped from the cache."""
    budget = {"policy": "fixed", "budget": 128, "protect_prompt": False}
    engine = start_engine(budget, pages=4, max_model_len=128, enable_prefix_caching=True)
    with guarded(engine) as plans:
        engine.generate([PREFIX[:-1]], 32)
    assert len(plans) == 0  # 127 tokens fit
    engine = start_engine(budget, pages=5, max_model_len=160, enable_prefix_caching=True)
    with guarded(engine) as plans:
        engine.generate([PREFIX[:-1], PREFIX[:40]], 60)
    assert engine.scheduler.ledger.preemptions == 0
    assert plans
    assert engine.scheduler.ledger.copied_pages > 0


def cached_tokens(engine: Engine, prompt: list[int], tokens: int) -> tuple[list[int], int]:
    """The answer, and how much of the prompt was found in the prefix cache."""
    from vllm import SamplingParams

    (output,) = engine.llm.generate(
        [{"prompt_token_ids": prompt}],
        SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True),
        use_tqdm=False,
    )
    return list(output.outputs[0].token_ids), output.num_cached_tokens


def test_a_prompt_stays_hittable_after_the_request_that_compressed_it(budgeted: Engine) -> None:
    assert budgeted.scheduler.kv_cache_manager.reset_prefix_cache()
    before = budgeted.scheduler.ledger.compressions
    assert cached_tokens(budgeted, LONG, 250)[1] == 0
    assert budgeted.scheduler.ledger.compressions > before
    assert cached_tokens(budgeted, LONG, 5)[1] == len(PREFIX)


def test_a_chat_of_several_turns(budgeted: Engine, full: Engine) -> None:
    """Each turn repeats all that was said. What was computed before the first compression is
    found again; what came later is not registered, and is computed anew."""
    hits: dict[str, list[int]] = {}
    for name, engine in (("full", full), ("budgeted", budgeted)):
        assert engine.scheduler.kv_cache_manager.reset_prefix_cache()
        said = prompt_of(40, seed=4)
        hits[name] = []
        for turn in range(4):
            answer, hit = cached_tokens(engine, said, 70)
            assert len(answer) == 70
            hits[name].append(hit)
            said = [*said, *answer, *prompt_of(20, seed=5 + turn)]
        engine.assert_pool_is_whole()
    assert hits["full"] == [0, 96, 192, 288]
    assert hits["budgeted"][:2] == hits["full"][:2]
    assert all(hit <= limit for hit, limit in zip(hits["budgeted"], hits["full"], strict=True))
    assert hits["budgeted"][2] == 192, "the second turn ends at 199 tokens, the budget is 192"
    assert hits["budgeted"][3] >= 192

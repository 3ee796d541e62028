"""Budgets are kept, memory comes back, and nobody is preempted for want of a page."""

from __future__ import annotations

from collections import Counter

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from growpage.engine.kwargs import ASYNC_SCHEDULER
from tests.engine.engines import Prompt, StartEngine, prompt_of

pytestmark = pytest.mark.engine

PROMPTS: list[Prompt] = [prompt_of(8, seed) for seed in range(8)]
TOKENS = 256


def test_plain_vllm_preempts_in_this_pool(start_engine: StartEngine) -> None:
    engine = start_engine({"policy": "full"}, pages=32)
    engine.generate(PROMPTS, TOKENS)
    assert engine.preemptions() > 0
    assert engine.scheduler.ledger.recomputed_tokens > 0


@pytest.mark.parametrize("step", [32, 64])
def test_fixed_never_exceeds_its_budget(start_engine: StartEngine, step: int) -> None:
    engine = start_engine({"policy": "fixed", "budget": 128, "step": step}, pages=32)
    peak: Counter[str] = Counter()

    def watch() -> None:
        for request, pages in engine.scheduler.pages_by_request().items():
            peak[request] = max(peak[request], pages)

    outputs = engine.generate(PROMPTS, TOKENS, watch)
    assert [len(tokens) for tokens in outputs] == [TOKENS] * len(PROMPTS)
    assert set(peak.values()) == {4}
    ledger = engine.scheduler.ledger
    assert ledger.preemptions == 0
    # 8 + 256 tokens through 128: each request evicts until its last token fits.
    assert ledger.evicted_tokens == len(PROMPTS) * (160 if step == 32 else 192)
    assert set(ledger.by_reason) == {"boundary"}


def test_growpage_grows_and_compresses_without_preemption(start_engine: StartEngine) -> None:
    engine = start_engine({"policy": "growpage", "min_pages": 3, "tau": -28}, pages=32)
    engine.generate(PROMPTS, TOKENS)
    ledger = engine.scheduler.ledger
    assert ledger.preemptions == 0
    assert ledger.growths > 0
    assert ledger.by_reason["boundary"] > 0
    assert ledger.stale_reports == 0


def test_without_a_free_page_growth_is_refused_and_nobody_is_preempted(
    start_engine: StartEngine,
) -> None:
    engine = start_engine({"policy": "growpage", "tau": -1e9, "min_pages": 3}, pages=32)
    free: list[int] = []
    engine.generate(PROMPTS, 200, lambda: free.append(engine.pool.get_num_free_blocks()))
    ledger = engine.scheduler.ledger
    assert min(free) == 0
    assert ledger.preemptions == 0
    assert ledger.growths_refused > 0
    assert ledger.by_reason["pool"] == ledger.growths_refused


def test_the_asynchronous_scheduler_decides_alike(start_engine: StartEngine) -> None:
    """Driven step by step, as the CPU's engine drives it."""
    budget = {"policy": "growpage", "min_pages": 3, "tau": -28.0}
    synchronous = start_engine(budget, pages=64)
    asynchronous = start_engine(budget, pages=64, scheduler_cls=ASYNC_SCHEDULER)
    assert isinstance(asynchronous.scheduler, AsyncScheduler)
    expected = synchronous.generate(PROMPTS[:4], 160)
    assert asynchronous.generate(PROMPTS[:4], 160) == expected
    assert asynchronous.scheduler.ledger == synchronous.scheduler.ledger
    assert asynchronous.scheduler.ledger.by_reason["boundary"] > 0
    assert asynchronous.scheduler.ledger.stale_reports == 0


def test_max_pages_is_never_exceeded(start_engine: StartEngine) -> None:
    budget = {"policy": "growpage", "tau": -1e9, "min_pages": 3, "max_pages": 5}
    engine = start_engine(budget, pages=48)
    peak = 0

    def watch() -> None:
        nonlocal peak
        peak = max(peak, *engine.scheduler.pages_by_request().values(), 0)

    engine.generate(PROMPTS, TOKENS, watch)
    assert peak == 5
    assert engine.scheduler.ledger.by_reason["max_pages"] > 0


def test_a_prompt_longer_than_the_budget_is_cut_down_at_once(start_engine: StartEngine) -> None:
    engine = start_engine({"policy": "fixed", "budget": 128}, pages=32)
    sizes: list[int] = []
    prompt = prompt_of(300)

    def watch() -> None:
        sizes.extend(engine.scheduler.pages_by_request().values())

    (output,) = engine.generate([prompt], 64, watch)
    assert len(output) == 64
    assert sizes[0] == 10
    assert max(sizes[1:]) <= 4
    assert engine.scheduler.ledger.by_reason["over_capacity"] == 1


def test_prompts_longer_than_the_token_batch_are_served(start_engine: StartEngine) -> None:
    engine = start_engine(
        {"policy": "growpage", "min_pages": 3},
        pages=48,
        max_num_batched_tokens=64,
        enable_chunked_prefill=True,
    )
    prompts = [prompt_of(90 + 37 * n, seed=n) for n in range(5)]
    outputs = engine.generate(prompts, 128)
    assert [len(tokens) for tokens in outputs] == [128] * 5
    assert engine.scheduler.ledger.compressions > 0


def test_an_aborted_request_gives_everything_back(start_engine: StartEngine) -> None:
    from vllm import SamplingParams

    engine = start_engine({"policy": "fixed", "budget": 128, "step": 32}, pages=32)
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS):
        engine.add(f"abort-{index}", prompt, sampling)
    before = engine.scheduler.ledger.compressions
    while engine.scheduler.ledger.compressions == before:
        engine.llm.llm_engine.step()
    for index in range(len(PROMPTS)):
        engine.llm.llm_engine.abort_request([f"abort-{index}"])
    engine.llm.llm_engine.step()
    assert engine.scheduler.pages_by_request() == {}
    assert engine.scheduler.pages.accounts == {}
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1
    # The worker hears of it with the next step, and forgets them too.
    engine.generate([prompt_of(5)], 4)
    assert not any(name.startswith("abort") for name in engine.runner.budgeter._slots)

"""The elastic policy: plain vLLM while there is memory, whole pages between requests when not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.engines import PAGE, Engine, Prompt, StartEngine, prompt_of

pytestmark = pytest.mark.engine

PROMPTS: list[Prompt] = [prompt_of(8 + 9 * seed, seed) for seed in range(8)]


@pytest.fixture(params=["largest", "least_loss"])
def tight(request: pytest.FixtureRequest, start_engine: StartEngine) -> Engine:
    """An engine with half of the pages that the prompts would grow to."""
    return start_engine({"policy": "elastic", "min_pages": 3, "giver": request.param}, pages=40)


def test_with_idle_memory_it_is_plain_vllm(start_engine: StartEngine) -> None:
    plain = start_engine(pages=100)
    engine = start_engine({"policy": "elastic"}, pages=100)
    assert engine.generate(PROMPTS, 300) == plain.generate(PROMPTS, 300)
    assert engine.scheduler.ledger.compressions == 0
    assert engine.scheduler.ledger.growths > 0


def test_a_full_pool_is_shared_out_and_nobody_is_preempted(tight: Engine) -> None:
    free: list[int] = []
    spread: list[int] = []
    before = tight.scheduler.ledger.compressions

    def watch() -> None:
        free.append(tight.pool.get_num_free_blocks())
        pages = tight.scheduler.pages_by_request().values()
        if len(pages) == len(PROMPTS) and free[-1] == 0:
            spread.append(max(pages) - min(pages))

    outputs = tight.generate(PROMPTS, 300, watch)
    assert [len(tokens) for tokens in outputs] == [300] * len(PROMPTS)
    ledger = tight.scheduler.ledger
    assert ledger.preemptions == 0
    assert ledger.compressions > before
    assert ledger.by_reason["pool"] > 0
    assert ledger.reclaimed_pages > 0
    assert min(free) == 0
    assert spread


def test_one_that_waits_is_let_in_when_the_floors_fit(start_engine: StartEngine) -> None:
    """One request has the whole pool; the next one is admitted at once, at its expense."""
    from vllm import SamplingParams

    engine = start_engine({"policy": "elastic", "min_pages": 3}, pages=24)
    sampling = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
    engine.add("long", prompt_of(20), sampling)
    while engine.pool.get_num_free_blocks() > 0:
        engine.llm.llm_engine.step()
    assert engine.scheduler.ledger.compressions == 0
    engine.add("new", prompt_of(50, seed=1), sampling)
    engine.llm.llm_engine.step()
    pages = engine.scheduler.pages_by_request()
    assert set(pages) == set(engine.scheduler.requests)
    assert len(pages) == 2
    assert engine.scheduler.ledger.by_reason["admission"] == 1, "several pages in one plan"
    assert engine.scheduler.ledger.reclaimed_pages == 3  # min_pages, in which its prompt fits
    peak: Counter[str] = Counter()
    while engine.llm.llm_engine.has_unfinished_requests():
        engine.llm.llm_engine.step()
        for name, held in engine.scheduler.pages_by_request().items():
            peak[name] = max(peak[name], held)
    assert engine.scheduler.ledger.preemptions == 0
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1
    assert all(held >= 10 for held in peak.values()), "the new one grows at the other's expense"


def test_nobody_falls_below_what_it_was_promised(start_engine: StartEngine) -> None:
    budget = {"policy": "elastic", "min_pages": 4}
    engine = start_engine(budget, pages=30)
    least: Counter[str] = Counter()
    held_most: Counter[str] = Counter()

    def watch() -> None:
        for name, held in engine.scheduler.pages_by_request().items():
            held_most[name] = max(held_most[name], held)
            if held_most[name] >= 4:
                least[name] = min(least[name] or held, held)

    engine.generate(PROMPTS, 200, watch)
    assert engine.scheduler.ledger.compressions > 0
    assert min(least.values()) >= 4 - 1, "a request that gives is left its floor less one page"


def test_the_watermark_stays_free(start_engine: StartEngine) -> None:
    engine = start_engine({"policy": "elastic", "min_pages": 2, "watermark": 6}, pages=40)
    free: list[int] = []
    engine.generate(
        [prompt_of(8, seed) for seed in range(4)],
        500,
        lambda: free.append(engine.pool.get_num_free_blocks()),
    )
    assert engine.scheduler.ledger.by_reason["pool"] > 0
    assert min(free) == 6


def test_max_pages_holds_under_elastic(start_engine: StartEngine) -> None:
    engine = start_engine({"policy": "elastic", "min_pages": 3, "max_pages": 5}, pages=60)
    peak = 0

    def watch() -> None:
        nonlocal peak
        peak = max(peak, *engine.scheduler.pages_by_request().values(), 0)

    engine.generate([*PROMPTS[:4], prompt_of(5 * PAGE - 2)], 250, watch)
    assert peak == 5
    assert set(engine.scheduler.ledger.by_reason) == {"max_pages"}

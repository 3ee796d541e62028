"""Asynchronous scheduling: two batches in flight, results looked at one step late."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from growpage.engine.kwargs import ASYNC_SCHEDULER
from tests.engine.engines import Prompt, StartEngine, prompt_of

pytestmark = pytest.mark.engine

PROMPTS: list[Prompt] = [prompt_of(8 + 13 * seed, seed) for seed in range(6)]
BUDGETS: list[dict[str, Any]] = [
    {"policy": "fixed", "budget": 128},
    {"policy": "growpage", "min_pages": 3, "tau": -28.0},
    {"policy": "every", "growth_rate": 0.5, "score": "summary"},
    {"policy": "elastic", "min_pages": 3},
    {"policy": "entropy", "min_pages": 3},
]


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: budget["policy"])
def test_tokens_and_decisions_are_those_of_the_synchronous_scheduler(
    start_engine: StartEngine, budget: dict[str, Any]
) -> None:
    synchronous = start_engine(budget, pages=80, dtype="float32")
    asynchronous = start_engine(budget, pages=80, dtype="float32", scheduler_cls=ASYNC_SCHEDULER)
    assert isinstance(asynchronous.scheduler, AsyncScheduler)
    expected = synchronous.generate(PROMPTS, 200)
    with asynchronous.two_batches_in_flight():
        assert asynchronous.generate(PROMPTS, 200) == expected
    ledger = asynchronous.scheduler.ledger
    assert ledger == synchronous.scheduler.ledger
    assert ledger.stale_reports == 0, "a report came too late"
    if budget["policy"] == "elastic":
        assert ledger.growths > 0
    else:
        assert ledger.by_reason["boundary"] > 0


def test_a_report_from_before_a_preemption_is_ignored(start_engine: StartEngine) -> None:
    """It is in flight when the request loses its cache."""
    from vllm import SamplingParams

    budget = {"policy": "growpage", "min_pages": 3, "tau": -28.0}
    engine = start_engine(budget, pages=80, dtype="float32", scheduler_cls=ASYNC_SCHEDULER)
    before = engine.scheduler.ledger.stale_reports
    with engine.two_batches_in_flight():
        sampling = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
        engine.add("one", prompt_of(8), sampling)
        while not engine.runner._message.measure:
            engine.llm.llm_engine.step()
        engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        tokens = []
        while engine.llm.llm_engine.has_unfinished_requests():
            for output in engine.llm.llm_engine.step():
                tokens = output.outputs[0].token_ids
    assert len(tokens) == 150
    assert engine.scheduler.ledger.stale_reports == before + 1
    engine.assert_pool_is_whole()


def test_a_tight_pool_is_shared_as_well(start_engine: StartEngine) -> None:
    budget = {"policy": "elastic", "min_pages": 3}
    engine = start_engine(budget, pages=24, dtype="float32", scheduler_cls=ASYNC_SCHEDULER)
    with engine.two_batches_in_flight():
        outputs = engine.generate(PROMPTS, 250)
    assert [len(tokens) for tokens in outputs] == [250] * len(PROMPTS)
    assert engine.scheduler.ledger.preemptions == 0
    assert engine.scheduler.ledger.by_reason["pool"] > 0


def test_alone_or_thirty_two_at_once(start_engine: StartEngine) -> None:
    """A request's cache is cut in the same way whoever runs beside it.

    Greedy tokens may differ between batch sizes in vLLM itself, so that is measured first.
    """
    prompts: list[Prompt] = [prompt_of(10 + seed, seed) for seed in range(32)]
    differing = {}
    for name, budget in (("plain", None), ("fixed", {"policy": "fixed", "budget": 64})):
        settings = {} if budget is None else {"scheduler_cls": ASYNC_SCHEDULER}
        engine = start_engine(budget, pages=200, dtype="float32", max_num_seqs=32, **settings)
        alone = [engine.generate([prompt], 100)[0] for prompt in prompts[:8]]
        together = engine.generate(prompts, 100)[:8]
        if budget is not None:
            with engine.two_batches_in_flight():
                assert engine.generate(prompts, 100)[:8] == together
            assert engine.scheduler.ledger.compressions > 0
        differing[name] = sum(a != b for a, b in zip(alone, together, strict=True))
    assert differing["fixed"] <= differing["plain"] + 1

"""When a request loses its cache after all: it starts afresh, in bounded memory, and gets on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.engines import Engine, StartEngine, prompt_of
from tests.engine.observer import TOLERANCE, observed

pytestmark = pytest.mark.engine

BUDGETS = [
    {"policy": "fixed", "budget": 160},
    {"policy": "growpage", "tau": -28},
    {"policy": "elastic"},
]


def run_until(engine: Engine, tokens: int) -> None:
    """Step until every running request has as many tokens."""
    while min(request.num_tokens for request in engine.scheduler.running) < tokens:
        engine.llm.llm_engine.step()


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: budget["policy"])
@pytest.mark.parametrize("caching", [False, True], ids=["", "prefix-caching"])
def test_logical_lengths_beyond_the_pool(
    start_engine: StartEngine, budget: dict[str, Any], caching: bool
) -> None:
    """Two requests of 420 tokens each in 12 pages, 384 tokens, are preempted and finish."""
    from vllm import SamplingParams

    engine = start_engine(budget, pages=12, enable_prefix_caching=caching)
    ledger = engine.scheduler.ledger
    sampling = SamplingParams(temperature=0, max_tokens=480, ignore_eos=True)
    for seed in range(2):
        engine.add(f"request-{seed}", prompt_of(20, seed), sampling)
    engine.llm.llm_engine.step()
    run_until(engine, 420)
    before = ledger.computed_tokens
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert engine.scheduler.pages.accounts == {}
    finished: dict[str, int] = {}
    with observed(engine) as seen:
        while engine.llm.llm_engine.has_unfinished_requests():
            for output in engine.llm.llm_engine.step():
                if output.finished:
                    finished[output.request_id] = len(output.outputs[0].token_ids)
            for name, account in engine.scheduler.pages.accounts.items():
                assert engine.scheduler.pages.pages(name) <= 12
                assert account.evicted < engine.scheduler.requests[name].num_computed_tokens
    assert finished == {"request-0": 480, "request-1": 480}
    assert ledger.preemptions == 2, "they are preempted again"
    assert ledger.by_reason["replay"] > 0
    assert 800 <= ledger.recomputed_tokens <= 860
    assert ledger.recomputed_share == ledger.recomputed_tokens / ledger.computed_tokens
    assert ledger.computed_tokens - before <= 2 * 500, "they are computed again and again"
    assert seen.compactions > 0
    assert seen.rows > 100
    assert seen.worst < max(TOLERANCE.values())
    engine.assert_pool_is_whole()


def test_queries_and_plans_start_afresh(start_engine: StartEngine) -> None:
    from vllm import SamplingParams

    engine = start_engine({"policy": "growpage", "tau": -28}, pages=40)
    engine.add("one", prompt_of(20), SamplingParams(temperature=0, max_tokens=300, ignore_eos=True))
    engine.llm.llm_engine.step()
    run_until(engine, 200)
    (name,) = engine.scheduler.requests
    budgeter = engine.runner.budgeter
    assert budgeter.summaries.count[budgeter._slots[name]] == 179
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.llm.llm_engine.step()
    account = engine.scheduler.pages.accounts[name]
    assert (account.evicted, account.boundaries, account.report) == (0, 0, None)
    # Whatever was computed again in one go is no decode query.
    assert budgeter.summaries.count[budgeter._slots[name]] == 0
    for count in range(1, 4):
        engine.llm.llm_engine.step()
        assert budgeter.summaries.count[budgeter._slots[name]] == count
    engine.llm.llm_engine.abort_request(["one"])
    engine.llm.llm_engine.step()
    engine.assert_pool_is_whole()

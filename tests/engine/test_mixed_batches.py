"""Prefills in chunks beside decodes: summaries see every decode row and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.engines import Engine, Prompt, StartEngine, prompt_of

pytestmark = pytest.mark.engine

# None a multiple of a page; some longer than the budget, some than the token batch of 48.
LENGTHS = [5, 33, 47, 63, 95, 130, 171, 203, 61, 29]


@pytest.fixture(scope="module")
def engine(start_engine: StartEngine) -> Engine:
    return start_engine(
        {"policy": "growpage", "min_pages": 3, "tau": -28, "max_pages": 5},
        pages=60,
        max_num_batched_tokens=48,
        enable_chunked_prefill=True,
    )


def staggered(engine: Engine, watch: Any) -> dict[str, int]:
    """Submit a request every few steps, so that prefills meet decodes; output lengths."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
    waiting: list[Prompt] = [prompt_of(length, seed) for seed, length in enumerate(LENGTHS)]
    ends: dict[str, int] = {}
    step = 0
    while waiting or engine.llm.llm_engine.has_unfinished_requests():
        if step % 4 == 0 and waiting:
            engine.add(f"request-{len(waiting)}", waiting.pop(), sampling)
        step += 1
        for output in engine.llm.llm_engine.step():
            if output.finished:
                ends[output.request_id] = len(output.outputs[0].token_ids)
        watch()
    return ends


def test_every_decode_row_counts_and_no_other(engine: Engine) -> None:
    budgeter = engine.runner.budgeter
    mixed = checked = 0

    def watch() -> None:
        nonlocal mixed, checked
        rows = engine.runner._rows
        mixed += bool(rows.decodes.any() and (rows.tokens > 1).any())
        for request in engine.scheduler.running:
            slot = budgeter._slots[request.request_id]
            decoded = max(request.num_computed_tokens - request.num_prompt_tokens, 0)
            assert budgeter.summaries.count[slot] == decoded
            checked += decoded > 0

    ends = staggered(engine, watch)
    assert set(ends.values()) == {90}
    assert len(ends) == len(LENGTHS)
    assert mixed >= 10
    assert checked >= 500
    assert engine.scheduler.ledger.by_reason["over_capacity"] > 0
    engine.assert_pool_is_whole()


def test_nothing_is_measured_while_the_summaries_are_cold(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgeter, policy = engine.runner.budgeter, engine.scheduler.policy
    measure, decide = budgeter.measure, policy.decide
    reports = {True: 0, False: 0}
    demands = []

    def measured(request_id: str, *args: Any) -> Any:
        report = measure(request_id, *args)
        warm = bool(budgeter.summaries.count[budgeter._slots[request_id]] >= 16)
        assert (report is not None) == warm
        reports[warm] += 1
        return report

    def decided(boundary: Any, pool: Any) -> Any:
        demands.append(boundary.demand)
        return decide(boundary, pool)

    monkeypatch.setattr(budgeter, "measure", measured)
    monkeypatch.setattr(policy, "decide", decided)
    staggered(engine, lambda: None)
    assert reports[True] > 10
    assert sum(demand is not None for demand in demands) == reports[True]
    assert sum(demand is None for demand in demands) >= reports[False]

"""What goes wrong fails by name: nothing hangs, and nothing is served from a wrong page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from growpage.engine.budgeter import PlanError
from growpage.engine.messages import CompactionPlan
from tests.engine.engines import StartEngine, prompt_of

pytestmark = pytest.mark.engine


def test_a_worker_that_fails_to_compact_stops_the_engine(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An engine of its own: it is broken afterwards.
    engine = start_engine({"policy": "fixed", "budget": 96, "seed": 1}, pages=20)

    def fail(*args: Any) -> None:
        raise MemoryError("no room for a copy")

    monkeypatch.setattr(engine.runner.budgeter, "_compact", fail)
    with pytest.raises(
        PlanError, match=r"could not compress request \S+ from 96 to 64 tokens: Mem"
    ):
        engine.generate([prompt_of(30)], 100)


def test_a_plan_for_a_request_that_is_gone(start_engine: StartEngine) -> None:
    engine = start_engine({"policy": "fixed", "budget": 128}, pages=32)
    plan = CompactionPlan(
        request_id="gone", kept=(), source=(1, 2), target=(1, 2), tokens=64, survivors=32,
        prefix=4, position=64,
    )  # fmt: skip
    before = engine.runner.kv_caches[0].clone()
    with pytest.raises(PlanError, match="request gone, which this worker does not know"):
        engine.runner.budgeter.compact(plan, 8)
    assert engine.runner.kv_caches[0].equal(before)


@pytest.mark.parametrize("policy", ["growpage", "elastic"])
def test_a_measurement_that_is_not_finite_fails_its_request(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    from vllm import SamplingParams

    engine = start_engine({"policy": policy, "min_pages": 3}, pages=12)  # not idle for elastic
    measure = engine.runner.budgeter.measure

    def spoilt(request_id: str, *args: Any) -> Any:
        report = measure(request_id, *args)
        if report is None or not request_id.startswith("bad"):
            return report
        return replace(report, demand=report.demand * float("nan"))

    monkeypatch.setattr(engine.runner.budgeter, "measure", spoilt)
    sampling = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
    for name in ("good", "bad"):
        engine.add(name, prompt_of(20), sampling)
    ends: dict[str, Any] = {}
    while engine.llm.llm_engine.has_unfinished_requests():
        for output in engine.llm.llm_engine.step():
            if output.finished:
                ends[output.request_id] = output.outputs[0]
    assert len(ends["good"].token_ids) == 120
    assert ends["bad"].finish_reason == "error"
    assert "its keys or queries are not finite" in ends["bad"].stop_reason
    engine.assert_pool_is_whole()

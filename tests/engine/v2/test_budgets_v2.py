"""Budgets under Model Runner V2: what holds under V1 holds here, and both decide alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch

from growpage.engine.kwargs import ASYNC_SCHEDULER
from growpage.engine.messages import DemandReport
from tests.engine.engines import PAGE, Engine
from tests.engine.observer import TOLERANCE, observed
from tests.engine.v2.conftest import Start

pytestmark = pytest.mark.engine

# The third is longer than a step's 64 tokens, so it is computed in chunks beside decodes.
PROMPTS = [[(7 * n + t) % 250 for t in range(length)] for n, length in enumerate((20, 33, 90))]
FIXED = {"policy": "fixed", "budget": 96}


@pytest.fixture(scope="module")
def plain(start: Start) -> list[list[int]]:
    return start(None).generate(PROMPTS, 40)


def test_switched_off_it_is_vllms_own_runner(start: Start, plain: list[list[int]]) -> None:
    from vllm.v1.worker.cpu.model_runner import CPUModelRunner

    engine = start(None)
    assert type(engine.runner) is CPUModelRunner
    assert type(engine.scheduler).__name__ == "Scheduler"
    assert start(None, v2=False).generate(PROMPTS, 40) == plain


@pytest.mark.parametrize(
    "budget",
    [{"policy": "full"}, {"policy": "growpage", "tau": -1e9, "score": "summary"}],
    ids=["full", "growpage-always-grows"],
)
def test_a_budget_that_never_evicts_gives_the_tokens_of_plain_vllm(
    start: Start, plain: list[list[int]], budget: dict[str, Any]
) -> None:
    engine = start(budget)
    assert type(engine.runner).__name__ == "GrowPageCPUModelRunnerV2"
    assert engine.generate(PROMPTS, 40) == plain
    assert engine.scheduler.ledger.compressions == 0


def test_kept_tokens_and_attention(start: Start) -> None:
    """Reachability, exactness and the cap of compressed requests, and the tokens of V1."""
    engine, peak = start(FIXED), Counter[str]()

    def watch() -> None:
        for request, pages in engine.scheduler.pages_by_request().items():
            peak[request] = max(peak[request], pages)

    with observed(engine) as seen:
        outputs = engine.generate(PROMPTS, 80, watch)
    assert set(peak.values()) == {3}
    assert seen.compactions == 5
    assert seen.rows > 2 * 80
    assert seen.worst < TOLERANCE[torch.float32]
    assert engine.scheduler._watch.acknowledged
    one = start(FIXED, v2=False)
    assert one.generate(PROMPTS, 80) == outputs
    assert one.scheduler.ledger == engine.scheduler.ledger


def reports_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[DemandReport]:
    """The reports that will arrive."""
    noted: list[DemandReport] = []
    take = engine.scheduler._take_report

    def note(request: str, report: DemandReport) -> None:
        noted.append(report)
        take(request, report)

    monkeypatch.setattr(engine.scheduler, "_take_report", note)
    return noted


def test_demand_is_reported_in_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two steps in flight, as on a GPU, so that every report arrives a step late."""
    budget = {
        "policy": "growpage",
        "min_pages": 2,
        "warmup": 4,
        "tau": -25.0,
        "track_entropy": True,
    }
    engine, one = start(budget, scheduler_cls=ASYNC_SCHEDULER), start(budget, v2=False)
    noted = [reports_of(each, monkeypatch) for each in (engine, one)]
    with engine.two_batches_in_flight():
        outputs = engine.generate(PROMPTS, 80)
    assert outputs == one.generate(PROMPTS, 80)
    ours, theirs = (
        sorted(reports, key=lambda each: (each.position, each.demand.cached)) for reports in noted
    )
    assert len(ours) == len(theirs) >= len(PROMPTS)
    for report, other in zip(ours, theirs, strict=True):
        assert report.position == other.position
        assert report.demand.entropy == pytest.approx(other.demand.entropy, abs=1 / 16)
        assert report.demand.density is not None
    assert engine.scheduler.ledger == one.scheduler.ledger
    assert engine.scheduler.ledger.growths > 0
    assert engine.scheduler.ledger.by_reason["boundary"] > 0
    assert engine.scheduler.ledger.stale_reports == 0


def test_a_preempted_request_is_compressed_while_it_is_computed_again(start: Start) -> None:
    """V2 gets it back as if it were new, with the tokens that it has generated."""
    budget = {"policy": "fixed", "budget": 64}
    engine, one = (start(budget, v2=v2, pages=4) for v2 in (True, False))

    def preempt_late(engine: Engine) -> Callable[[], None]:
        steps = count(1)

        def watch() -> None:
            if next(steps) == 100:  # it has more tokens than the pool has room for
                assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)

        return watch

    with observed(engine) as seen:
        outputs = engine.generate(PROMPTS[1:2], 110, preempt_late(engine))
    assert outputs == one.generate(PROMPTS[1:2], 110, preempt_late(one))
    assert seen.worst < TOLERANCE[torch.float32]
    ledger = engine.scheduler.ledger
    assert ledger == one.scheduler.ledger
    assert ledger.preemptions == 1
    assert ledger.recomputed_tokens > 4 * PAGE
    assert ledger.by_reason["replay"] > 0


def test_a_request_that_shares_pages_is_not_disturbed(start: Start) -> None:
    prefix = [(37 * t) % 250 for t in range(2 * PAGE)]
    long = [*prefix, *range(50)]  # past its 128 tokens after 14 more
    short = [*prefix, *range(100, 115)]  # within them to the end
    results = {}
    for policy in ("full", "fixed"):
        engine = start({"policy": policy, "budget": 128}, enable_prefix_caching=True)
        engine.generate([[*prefix, 200]], 1)
        cached = [block.block_id for block in engine.pool.blocks if block.block_hash is not None]
        assert len(cached) == 2
        before = engine.runner.kv_caches[0][cached].clone()
        results[policy] = engine.generate([long, short], 45)[1]
        assert torch.equal(engine.runner.kv_caches[0][cached], before), "a cached page was written"
        assert (engine.scheduler.ledger.compressions > 0) == (policy == "fixed")
    assert results["fixed"] == results["full"]


def test_vllms_own_warm_up(start: Start) -> None:
    """On GPUs vLLM runs steps of its own making before it serves: they carry no message."""
    from vllm.v1.worker.gpu.warmup import run_mixed_prefill_decode_warmup

    engine = start(FIXED)
    known = set(engine.runner.budgeter._slots)
    worker = engine.core.model_executor.driver_worker.worker
    steps = (engine.runner, worker.execute_model, worker.sample_tokens, 8)
    with engine.runner.warming_up():
        assert run_mixed_prefill_decode_warmup(*steps)
    assert set(engine.runner.budgeter._slots) <= known
    with pytest.raises(RuntimeError, match="got a step from another scheduler"):
        run_mixed_prefill_decode_warmup(*steps)


def test_the_worker_forgets_requests_that_have_ended(start: Start) -> None:
    engine = start(FIXED)
    engine.generate([[1, 2, 3]], 2)
    assert len(engine.runner.budgeter._slots) == 1  # it hears of an end with the next step

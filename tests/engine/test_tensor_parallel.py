"""Two tensor-parallel workers over gloo: the same decisions, from the demand of all heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from growpage.budget.demand import Demand
from growpage.engine.budgeter import LOSS_PAGES
from growpage.engine.messages import DemandReport
from tests.engine.engines import PAGE, Engine, StartEngine
from tests.engine.tiny_models import tiny_llama

pytestmark = pytest.mark.engine

PROMPTS = [[(7 * n + t) % 250 for t in range(20 + 20 * n)] for n in range(3)]
TOKENS = 130
BUDGET = {
    "policy": "growpage",
    "score": "summary",
    "min_pages": 3,
    "max_pages": 5,
    "warmup": 8,
    "tau": -25.0,
    "track_entropy": True,
}
LAYERS, HEADS = 2, 4


# ---- in the workers ------------------------------------------------------------------------------


def watch(worker: Any) -> None:
    """Note what the worker's budgeter measures and compacts, and its own share of the sums."""
    budgeter = worker.model_runner.budgeter
    worker.noted = {"sums": [], "reports": [], "plans": []}
    workers, measure, compact = budgeter.workers, budgeter.measure, budgeter.compact

    class Noting:
        size, rank = workers.size, workers.rank

        def total(self, sums: Any) -> Any:
            worker.noted["sums"].append(sums.tolist())
            return workers.total(sums)

    def measured(request_id: str, *args: Any) -> Any:
        report = measure(request_id, *args)
        worker.noted["reports"].append(report and report.settle())
        return report

    def compacted(plan: Any, *args: Any) -> None:
        taken_in = int(budgeter.summaries.count[budgeter._slots[plan.request_id]])
        worker.noted["plans"].append((plan, taken_in))
        compact(plan, *args)

    budgeter.workers, budgeter.measure, budgeter.compact = Noting(), measured, compacted


def fail_on_the_second(worker: Any) -> None:
    """Let compaction fail on the worker whose answers nobody waits for."""
    if worker.rank == 1:

        def fail(*args: Any) -> None:
            raise MemoryError("no room for a copy")

        worker.model_runner.budgeter._compact = fail


def noted(worker: Any) -> dict[str, list[Any]]:
    return dict(worker.noted)


def heads(worker: Any) -> tuple[int, int]:
    budgeter = worker.model_runner.budgeter
    return budgeter.shape.query_heads, budgeter.cache.kv_heads


# ---- the tests -----------------------------------------------------------------------------------


def start(
    start_engine: StartEngine,
    folders: pytest.TempPathFactory,
    budget: dict[str, Any] | None,
    kv_heads: int,
    workers: int,
) -> Engine:
    backend = {} if workers == 1 else {"distributed_executor_backend": "mp"}
    model = tiny_llama(folders, layers=LAYERS, heads=HEADS, kv_heads=kv_heads)
    return start_engine(
        budget, model=model, dtype="float32", pages=40, tensor_parallel_size=workers, **backend
    )


@pytest.fixture(
    params=[(2, "mean"), (1, "q90")], ids=["own KV heads, mean", "replicated KV head, q90"]
)
def engines(
    start_engine: StartEngine,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Engine, Engine, Engine]]:
    """The same model on plain vLLM, on one worker, and on two."""
    # By itself vLLM binds each worker to a NUMA node of its own, and may find only one.
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    kv_heads, over_heads = request.param
    budget = {**BUDGET, "demand_over_heads": over_heads}
    plain = start(start_engine, tmp_path_factory, None, kv_heads, 1)
    one = start(start_engine, tmp_path_factory, budget, kv_heads, 1)
    two = start(start_engine, tmp_path_factory, budget, kv_heads, 2)
    yield plain, one, two
    two.core.model_executor.shutdown()


def test_two_workers_decide_alike(engines: tuple[Engine, Engine, Engine]) -> None:
    plain, one, two = engines
    assert two.llm.collective_rpc(heads) == [(HEADS // 2, 1)] * 2

    # The budget is not full yet.
    assert two.generate(PROMPTS, 36) == plain.generate(PROMPTS, 36)

    for engine in (one, two):
        engine.llm.collective_rpc(watch)
    before = two.scheduler.ledger.compressions
    tokens = two.generate(PROMPTS, TOKENS)
    assert two.scheduler.ledger.compressions > before
    assert two.scheduler.ledger.growths > 0
    first, second = two.llm.collective_rpc(noted)
    assert first["plans"] == second["plans"]
    assert first["reports"] == second["reports"]
    # What is equal is a total: either worker's own heads say something else.
    assert first["sums"] != second["sums"]
    assert len(first["sums"]) == len(first["reports"]) > 0
    for report, own, other in zip(first["reports"], first["sums"], second["sums"], strict=True):
        total = [a + b for a, b in zip(own, other, strict=True)]
        made = demand_of(total, report.demand.cached, two.scheduler.policy.config.over_heads)
        assert report == DemandReport(report.epoch, report.position, made)

    # One worker measures the same model, and decides as two with KV heads of their own do. Of a
    # replicated one, each worker keeps what its own query heads attend to.
    alone_tokens = one.generate(PROMPTS, TOKENS)
    (alone,) = one.llm.collective_rpc(noted)
    assert demand(alone["reports"][0]) == pytest.approx(demand(first["reports"][0]), rel=1e-3)
    # What each worker keeps of a step is off by half of a sixteenth of a nat at most.
    assert entropies(alone["reports"][:1]) == pytest.approx(
        entropies(first["reports"][:1]), abs=1 / 16
    )
    if one.llm.collective_rpc(heads) == [(HEADS, 2)]:
        assert alone_tokens == tokens
        assert [demand(report) for report in alone["reports"]] == [
            pytest.approx(demand(report), rel=1e-2) for report in first["reports"]
        ]
        assert len(alone["plans"]) == len(first["plans"])

    # A worker that fails alone takes the engine with it, also one whose errors vLLM ignores.
    two.llm.collective_rpc(fail_on_the_second)
    with pytest.raises(RuntimeError):
        two.generate(PROMPTS, TOKENS)


def demand(report: DemandReport) -> tuple[float, ...]:
    found = report.demand
    return found.short, found.long, *found.losses


def entropies(reports: list[DemandReport]) -> list[float | None]:
    return [report.demand.entropy for report in reports]


def demand_of(total: list[float], cached: int, over_heads: str) -> Any:
    """The demand that both workers' sums make together."""
    heads = LAYERS * HEADS
    losses = min((cached - 1) // PAGE, LOSS_PAGES)
    if over_heads == "mean":
        sizes, rest = np.array(total[:3]) / heads, total[3:]
    else:  # every head's own
        by_head, rest = np.reshape(total[: 3 * heads], (heads, 3)), total[3 * heads :]
        sizes = np.quantile(by_head, 0.9, axis=0)
    short, long, delta = sizes.tolist()
    lost = [value / heads for value in rest[:losses]]
    entropy, *shares = (value / 2 for value in rest[losses:])
    assert 8 <= len(shares) <= 32
    bins = Counter(int(8 * share) for share in shares)
    return Demand(
        short=pytest.approx(short),
        long=pytest.approx(long),
        cached=cached,
        losses=pytest.approx(tuple(lost)),
        entropy=pytest.approx(entropy),
        density=max(bins.values()) / len(shares),
        difference=pytest.approx(delta),
    )

"""Made-up results: a page pool served by a few lines of simulation, no engine."""

from __future__ import annotations

import pytest

from growpage.bench.comparison import Comparison, Setting
from growpage.bench.results import Preemption, RunResult, Timeline
from growpage.bench.workload import FAMILIES, Family

BLOCK = 32
POOL = 95
STEP_S = 0.06
LENGTHS: dict[Family, tuple[int, int]] = {
    "short": (40, 30),
    "list": (48, 370),
    "recall": (130, 384),
}


def simulate(policy: str, cap: int | None) -> RunResult:
    """First come, first served; the last one in is preempted; ``cap`` pages a request at most."""
    demand = {
        f"{family}-{number:02}": LENGTHS[family] for number in range(1, 11) for family in FAMILIES
    }
    waiting = list(demand)
    done: dict[str, int] = dict.fromkeys(demand, 0)
    running: list[str] = []
    preempted: list[Preemption] = []
    pages: dict[str, list[int]] = {name: [] for name in demand}
    used, active, queued = [], [], []

    def need(name: str) -> int:
        held = -(-(demand[name][0] + done[name] + 1) // BLOCK)
        return min(held, cap) if cap else held

    step = 0
    while waiting or running:
        while sum(map(need, running)) > POOL:
            waiting.insert(0, running.pop())
            preempted.append(Preemption(seconds=step * STEP_S, request=waiting[0]))
        while waiting and sum(map(need, running)) + need(waiting[0]) <= POOL:
            running.append(waiting.pop(0))
        for name in demand:
            pages[name].append(need(name) if name in running else 0)
        used.append(sum(map(need, running)))
        active.append(len(running))
        queued.append(len(waiting))
        for name in running:
            done[name] += 1
        running = [name for name in running if done[name] < demand[name][1]]
        step += 1

    held = [count for each in pages.values() for count in each if count]
    tokens = sum(done.values())
    return RunResult(
        policy=policy,
        tokens_per_s=tokens / (step * STEP_S),
        output_tokens=tokens,
        wall_s=step * STEP_S,
        engine_start_s=10.0,
        steps=step,
        preemptions=len(preempted),
        recomputed_tokens=100 * len(preempted),
        mean_pages=sum(held) / len(held),
        peak_pages=max(held),
        mean_resident=len(held) / step,
        peak_resident=max(active),
        compressions=0 if cap is None else 120,
        growths=0,
        growths_refused=0,
        evicted_tokens=0,
        pages_leaked=0,
        pool_pages=POOL,
        outputs={name: list(range(count)) for name, count in done.items()},
        timeline=Timeline(
            step=list(range(step)),
            seconds=[index * STEP_S for index in range(step)],
            pages_used=used,
            running=active,
            waiting=queued,
            pages=pages,
            tokens={name: [BLOCK * count for count in each] for name, each in pages.items()},
        ),
        preempted=preempted,
    )


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    """Three policies; ``full`` preempts, the others do not."""
    results = [simulate("full", None), simulate("fixed", 5), simulate("growpage", 6)]
    families: dict[str, Family] = {}
    for name in results[0].outputs:
        (families[name],) = (family for family in FAMILIES if name.startswith(family))
    return Comparison(
        Setting(
            model="SmolLM2-135M-Instruct",
            families=families,
            max_new_tokens=384,
            pool_pages=POOL,
            block_size=BLOCK,
            dtype="auto",
            page_bytes=737_280,
            pool_formula="a fifth",
            prefix_caching=True,
            seed=0,
            settings={
                "full": {"policy": "full"},
                "fixed": {"policy": "fixed", "budget": 160},
                "growpage": {"policy": "growpage", "min_pages": 4},
            },
        ),
        results,
    )

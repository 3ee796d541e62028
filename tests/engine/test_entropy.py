"""Attention entropy as the engine tracks it, and the policy that decides by it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from growpage.engine.messages import DemandReport
from tests.engine.engines import PAGE, Engine, Prompt, StartEngine, prompt_of
from tests.engine.observer import TOLERANCE, observed
from tests.engine.tiny_models import tiny_llama, tiny_qwen2

pytestmark = pytest.mark.engine

PROMPTS: list[Prompt] = [prompt_of(20 + 17 * seed, seed) for seed in range(3)]


class Witness:
    """Every decode row's attention in one layer, from what the kernel is told to read.

    The rows, lengths and pages are those of vLLM's attention metadata, not those that growpage's
    runner works out for itself.
    """

    def __init__(self, engine: Engine, layer: int) -> None:
        self.runner = engine.runner
        self.cache = engine.runner.budgeter.cache
        self.layer = layer
        self.seen: dict[str, list[tuple[float, int]]] = {}
        """By request, each step's entropy in nats and number of keys."""
        self.reports: list[tuple[str, DemandReport, list[tuple[float, int]]]] = []
        """As they arrived, with what had been seen of the request by then."""

    def forward(self, query: torch.Tensor, metadata: Any, scale: float) -> None:
        rows = self.runner._rows
        for row, request in enumerate(rows.request_ids):
            begin, end = metadata.query_start_loc[row : row + 2].tolist()
            if end - begin > 1 or rows.start[row] < rows.prompt[row]:
                continue
            held = int(metadata.seq_lens[row])
            pages = metadata.block_table[row, : -(-held // PAGE)].long()
            (keys,) = self.cache.keys(slice(self.layer, self.layer + 1), pages)
            group = query.shape[1] // len(keys)
            heads = []
            for head, vector in enumerate(query[begin].double().numpy()):
                logits = keys[head // group, :held].double().numpy() @ vector * scale
                weights = np.exp(logits - logits.max())
                weights /= weights.sum()
                heads.append(-np.sum(weights * np.log(np.maximum(weights, 1e-300))))
            self.seen.setdefault(request, []).append((float(np.mean(heads)), held))


@contextmanager
def witnessed(engine: Engine, layer: int) -> Iterator[Witness]:
    """Watch a layer's attention, and the reports as the scheduler gets them."""
    witness = Witness(engine, layer)
    impl, scheduler = list(engine.runner._layers.values())[layer].impl, engine.scheduler
    forward, take = impl.forward, scheduler._take_report

    def watched(*args: Any, **named: Any) -> Any:
        result = forward(*args, **named)
        _, query, _, _, _, metadata, *_ = args
        witness.forward(query, metadata, impl.scale)
        return result

    def noted(request: str, report: DemandReport) -> None:
        witness.reports.append((request, report, list(witness.seen[request])))
        take(request, report)

    impl.forward, scheduler._take_report = watched, noted
    try:
        yield witness
    finally:
        del impl.forward, scheduler._take_report


@pytest.fixture(params=["auto", "fp8"])
def tracking(
    start_engine: StartEngine,
    tmp_path_factory: pytest.TempPathFactory,
    own_centres: Path,
    request: pytest.FixtureRequest,
) -> Engine:
    """An engine that would not measure anything by itself."""
    budget = {"policy": "fixed", "budget": 96, "track_entropy": True}
    if request.param == "auto":
        model = tiny_llama(tmp_path_factory, layers=3)
    else:
        model = tiny_qwen2(tmp_path_factory, key_offset=200)
    return start_engine(
        budget,
        model=model,
        dtype="float32",
        pages=40,
        kv_cache_dtype=request.param,
        max_num_batched_tokens=32,  # prompts in chunks, beside decodes
        max_model_len=512,
    )


def test_what_is_reported_is_what_attention_was(tracking: Engine) -> None:
    """Under a policy that only evicts, in mixed batches, before and after evictions."""
    with witnessed(tracking, len(tracking.runner._layers) // 2) as witness:
        tracking.generate(PROMPTS, 110)
    assert tracking.scheduler.ledger.by_reason["boundary"] >= 3
    assert len(witness.reports) >= 6
    assert any(len(seen) > 32 and seen[-1][1] < len(seen) + 20 for _, _, seen in witness.reports)
    for _, report, seen in witness.reports:
        demand = report.demand
        assert demand.entropy is not None and demand.density is not None
        assert demand.cached == seen[-1][1]
        assert demand.entropy == pytest.approx(np.mean([nats for nats, _ in seen]), abs=1 / 32)
        # The bins are those of the true figures, but for one that float32 moves over an edge.
        eighths = [8 * nats / math.log(keys) for nats, keys in seen[-32:]]
        unsure = sum(abs(each - round(each)) < 1e-3 for each in eighths)
        most = max(Counter(map(int, eighths)).values())
        assert demand.density == pytest.approx(most / len(eighths), abs=unsure / len(eighths))
    spread = [report.demand.entropy for _, report, _ in witness.reports]
    assert max(spread) - min(spread) > 2 / 32, "all alike: a constant would pass"


def test_it_starts_afresh_after_a_preemption(start_engine: StartEngine) -> None:
    from vllm import SamplingParams

    engine = start_engine({"policy": "entropy"}, pages=40)
    engine.add("one", prompt_of(20), SamplingParams(temperature=0, max_tokens=90, ignore_eos=True))
    while not engine.scheduler.running or engine.scheduler.running[0].num_tokens < 60:
        engine.llm.llm_engine.step()
    (name,), budgeter = engine.scheduler.requests, engine.runner.budgeter
    assert budgeter.entropy.count[budgeter._slots[name]] == 39
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.llm.llm_engine.step()
    # Whatever was computed again in one go is no decode step.
    assert budgeter.entropy.count[budgeter._slots[name]] == 0
    engine.llm.llm_engine.step()
    assert budgeter.entropy.count[budgeter._slots[name]] == 1
    while engine.llm.llm_engine.has_unfinished_requests():
        engine.llm.llm_engine.step()
    engine.assert_pool_is_whole()


def test_while_attention_is_wide_and_unsettled_it_is_plain_vllm(start_engine: StartEngine) -> None:
    plain = start_engine(pages=100)
    engine = start_engine({"policy": "entropy", "entropy_wide": 0, "entropy_dense": 1}, pages=100)
    assert engine.generate(PROMPTS, 150) == plain.generate(PROMPTS, 150)
    assert engine.scheduler.ledger.compressions == 0
    assert engine.scheduler.ledger.growths > 0
    assert engine.scheduler.ledger.stale_reports == 0


def test_the_policy_keeps_within_its_cap_and_loses_no_token(start_engine: StartEngine) -> None:
    """It grows below the boundary of 3 pages and some of a fourth, and compresses beyond it."""
    budget = {"policy": "entropy", "min_pages": 3, "max_pages": 6}
    engine, peak = start_engine(budget, pages=40, dtype="float32"), Counter[str]()

    def watch() -> None:
        for request, pages in engine.scheduler.pages_by_request().items():
            peak[request] = max(peak[request], pages)

    with observed(engine) as seen:
        outputs = engine.generate(PROMPTS, 170, watch)
    assert [len(tokens) for tokens in outputs] == [170] * len(PROMPTS)
    assert max(peak.values()) <= 6
    assert seen.compactions > 0
    assert seen.worst < TOLERANCE[torch.float32]
    ledger = engine.scheduler.ledger
    assert ledger.preemptions == 0
    assert ledger.growths > 0
    assert ledger.by_reason["boundary"] > 0
    assert ledger.stale_reports == 0

"""Forced replays of a tiny random model's answers on real engines."""

from __future__ import annotations

from typing import Any

import pytest

from growpage.bench.forced_replay import Reference, generate, peak_need, replay
from tests.engine.engines import PAGE, StartEngine, prompt_of

pytestmark = pytest.mark.engine

PROMPTS = {f"request-{length}": prompt_of(length, length) for length in (40, 60, 75)}
NEW_TOKENS = 120
TOGETHER = [0] * len(PROMPTS)

SETTINGS: dict[str, Any] = {
    "logits_processors": ["growpage.bench.teacher:Teacher"],
    "async_scheduling": False,
    "max_model_len": 256,
}


@pytest.fixture(scope="module")
def full(start_engine: StartEngine) -> Any:
    return start_engine({"policy": "full"}, pages=40, **SETTINGS).llm.llm_engine


@pytest.fixture(scope="module")
def reference(full: Any) -> Reference:
    return generate(full, PROMPTS, NEW_TOKENS, top=10)


def test_a_replay_with_full_kv_does_not_diverge(full: Any, reference: Reference) -> None:
    again = replay(full, reference, TOGETHER)
    assert abs(again.kl) < 1e-4
    assert again.usage == reference.usage


def test_the_peak_need_is_what_full_kv_takes(full: Any, reference: Reference) -> None:
    for arrivals in (TOGETHER, [0, 5, 70]):
        used = replay(full, reference, arrivals).usage.peak_pages
        assert peak_need(reference, arrivals, concurrency=16, page=PAGE) == used


def test_preempted_requests_are_replayed_too(
    start_engine: StartEngine, reference: Reference
) -> None:
    engine = start_engine({"policy": "full"}, pages=12, **SETTINGS).llm.llm_engine
    result = replay(engine, reference, [0, 5, 70])
    assert result.usage.preemptions > 0
    assert result.usage.peak_pages == 12
    assert abs(result.kl) < 1e-2


def test_a_harsh_cap_diverges(start_engine: StartEngine, reference: Reference) -> None:
    settings = {"policy": "fixed", "budget": 64}
    engine = start_engine(settings, pages=40, **SETTINGS).llm.llm_engine
    result = replay(engine, reference, TOGETHER)
    assert result.usage.compressions > 0
    assert min(result.kl_by_request.values()) > 0.05


def test_a_request_says_what_it_is_forced_to(full: Any, reference: Reference) -> None:
    other = {
        name: answer.model_copy(
            update={"tokens": [(3 * token + 1) % 251 for token in answer.tokens]}
        )
        for name, answer in reference.answers.items()
    }
    result = replay(full, reference.model_copy(update={"answers": other}), TOGETHER)
    assert result.kl > 1, "what it would have said follows another text"


def test_a_reference_needs_its_memory(start_engine: StartEngine) -> None:
    engine = start_engine({"policy": "full"}, pages=12, **SETTINGS).llm.llm_engine
    with pytest.raises(RuntimeError, match="give its engine more pages"):
        generate(engine, PROMPTS, NEW_TOKENS, top=10)

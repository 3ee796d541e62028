"""Forced replays of a tiny random model's answers on real engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from growpage.bench.distributions import LogitsFile
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
    for name, request in again.requests.items():
        answer = reference.answers[name]
        assert request.agreement == 1
        assert request.logprob == pytest.approx(answer.logprob, abs=1e-4)
        assert request.held.peak_pages == -(-(answer.length - 1) // PAGE)
        assert request.held.preemptions == 0


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
    assert min(request.kl for request in result.requests.values()) > 0.05
    for name, request in result.requests.items():
        assert request.held.peak_pages <= 3, "two pages, and the prompt's third"
        assert request.agreement < 1
        assert request.logprob < reference.answers[name].logprob


def test_a_request_says_what_it_is_forced_to(full: Any, reference: Reference) -> None:
    other = {
        name: answer.model_copy(
            update={"tokens": [(3 * token + 1) % 251 for token in answer.tokens]}
        )
        for name, answer in reference.answers.items()
    }
    result = replay(full, reference.model_copy(update={"answers": other}), TOGETHER)
    assert result.kl > 1, "what it would have said follows another text"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_whole_distributions_are_kept_and_compared(
    full: Any, start_engine: StartEngine, tmp_path: Path, temperature: float
) -> None:
    files = [
        LogitsFile(
            path=str(tmp_path / name), positions=NEW_TOKENS, vocabulary=256, dtype="bfloat16"
        )
        for name in PROMPTS
    ]
    whole = generate(full, PROMPTS, NEW_TOKENS, 10, keep=files, temperature=temperature, seed=3)
    for answer in whole.answers.values():
        assert answer.whole is not None
        logprobs = answer.whole.open().float().log_softmax(-1)
        watched = logprobs.gather(1, torch.tensor(answer.watched))
        torch.testing.assert_close(watched, torch.tensor(answer.logprobs), atol=1e-5, rtol=0)
        greedy = logprobs.argmax(-1).tolist() == answer.tokens
        assert greedy == (temperature == 0)
    again = replay(full, whole, TOGETHER)
    assert again.kl == pytest.approx(0, abs=1e-6)

    settings = {"policy": "fixed", "budget": 64}
    harsh = start_engine(settings, pages=40, **SETTINGS).llm.llm_engine
    in_part = whole.model_copy(
        update={
            "answers": {
                name: answer.model_copy(update={"whole": None})
                for name, answer in whole.answers.items()
            }
        }
    )
    exact, bounded = replay(harsh, whole, TOGETHER), replay(harsh, in_part, TOGETHER)
    for name, request in exact.requests.items():
        assert 0.05 < bounded.requests[name].kl < request.kl, "the likeliest alone say less"
        assert bounded.requests[name].agreement == request.agreement
        assert bounded.requests[name].logprob == request.logprob


def test_plain_vllm_is_replayed_too(start_engine: StartEngine, reference: Reference) -> None:
    engine = start_engine(pages=40, **SETTINGS).llm.llm_engine
    result = replay(engine, reference, TOGETHER)
    assert abs(result.kl) < 1e-4
    assert (result.usage.compressions, result.usage.evicted_tokens) == (0, 0)


def test_a_reference_needs_its_memory(start_engine: StartEngine) -> None:
    engine = start_engine({"policy": "full"}, pages=12, **SETTINGS).llm.llm_engine
    with pytest.raises(RuntimeError, match="give its engine more pages"):
        generate(engine, PROMPTS, NEW_TOKENS, top=10)

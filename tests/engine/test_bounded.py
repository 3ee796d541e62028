"""Pools smaller than ``max_model_len``: they start, serve, and say what they cannot do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from growpage.budget.errors import ConfigError
from growpage.engine.checks import check_pool
from tests.engine.engines import PAGE, StartEngine, prompt_of

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [({"policy": "elastic"}, 2400), ({"policy": "fixed", "budget": 256}, 1200)],
    ids=["elastic", "fixed"],
)
def test_thousands_of_tokens_in_a_pool_of_512(
    start_engine: StartEngine, budget: dict[str, Any], tokens: int
) -> None:
    engine = start_engine(budget, pages=16, max_model_len=4608)
    assert engine.core.vllm_config.cache_config.kv_cache_size_tokens == 512
    (output,) = engine.generate([prompt_of(20)], tokens)
    assert len(output) == tokens
    assert engine.scheduler.ledger.preemptions == 0
    assert engine.scheduler.ledger.evicted_tokens >= tokens - 512


def test_a_prompt_longer_than_the_pool_is_refused_with_the_numbers(
    start_engine: StartEngine,
) -> None:
    from vllm import SamplingParams

    engine = start_engine({"policy": "elastic"}, pages=16, max_model_len=4608)
    sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    prompts = {"before": 100, "fits": 512, "too-long": 513, "after": 50}
    for name, tokens in prompts.items():
        engine.add(name, prompt_of(tokens), sampling)
    finished: dict[str, Any] = {}
    while engine.llm.llm_engine.has_unfinished_requests():
        for output in engine.llm.llm_engine.step():
            if output.finished:
                finished[output.request_id] = output.outputs[0]
    assert {name: len(end.token_ids) for name, end in finished.items()} == {
        "before": 30,
        "fits": 30,
        "too-long": 0,
        "after": 30,
    }
    refused = finished["too-long"]
    assert refused.finish_reason == "error"
    assert refused.stop_reason == (
        "the prompt has 513 tokens (17 pages), but the whole KV cache holds 512 (16 pages); "
        "shorten it, or give the server more KV cache"
    )
    assert engine.scheduler.ledger.refused_prompts == 1
    engine.assert_pool_is_whole()


def pool_of(budget: dict[str, Any], max_model_len: int = 4096) -> Any:
    return SimpleNamespace(
        additional_config={"growpage": budget},
        cache_config=SimpleNamespace(block_size=PAGE),
        model_config=SimpleNamespace(max_model_len=max_model_len),
    )


def test_a_pool_below_the_least_capacity_is_refused() -> None:
    fixed = pool_of({"policy": "fixed", "budget": 512})
    check_pool(17, fixed)
    with pytest.raises(ConfigError, match="room for 15 pages of 32 tokens, but budget asks for 16"):
        check_pool(16, fixed)
    with pytest.raises(ConfigError, match="lower min_pages, or give the server more KV cache"):
        check_pool(3, pool_of({"policy": "elastic"}))
    check_pool(3, pool_of({"policy": "elastic"}, max_model_len=64))  # never more than 2 pages
    check_pool(3, pool_of({"policy": "full"}))  # vLLM's own check


def test_it_is_refused_before_the_cache_is_allocated(start_engine: StartEngine) -> None:
    with pytest.raises(ConfigError, match="room for 3 pages"):
        start_engine({"policy": "fixed", "budget": 256}, pages=3)

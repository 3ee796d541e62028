"""Inert when off, and plain vLLM token for token where nothing is evicted."""

from __future__ import annotations

import pytest

from tests.engine.engines import Prompt, StartEngine, prompt_of

pytestmark = pytest.mark.engine

PROMPTS: list[Prompt] = [prompt_of(5 + 11 * n, seed=n) for n in range(6)]


@pytest.fixture(scope="module")
def plain(start_engine: StartEngine) -> list[list[int]]:
    return start_engine().generate(PROMPTS, 96)


def test_an_installed_plugin_that_is_off_changes_nothing(start_engine: StartEngine) -> None:
    engine = start_engine()
    layers = engine.runner.compilation_config.static_forward_context.values()
    assert {type(layer.impl).__name__ for layer in layers} == {"CPUAttentionBackendImpl"}
    assert type(engine.scheduler).__name__ == "Scheduler"
    assert type(engine.runner).__name__ == "CPUModelRunner"


def test_full_gives_the_tokens_of_plain_vllm(
    start_engine: StartEngine, plain: list[list[int]]
) -> None:
    engine = start_engine({"policy": "full"})
    assert engine.generate(PROMPTS, 96) == plain
    assert engine.scheduler.ledger.compressions == 0


@pytest.mark.parametrize(
    "budget",
    [
        {"policy": "fixed", "budget": 512},
        {"policy": "growpage", "tau": -1e9},
        {"policy": "every", "growth_rate": 1.0, "score": "summary"},
    ],
    ids=["fixed-not-reached", "growpage-always-grows", "every-always-grows"],
)
def test_a_budget_that_never_evicts_gives_the_tokens_of_plain_vllm(
    start_engine: StartEngine, plain: list[list[int]], budget: dict[str, object]
) -> None:
    engine = start_engine(budget)
    assert engine.generate(PROMPTS, 96) == plain
    assert engine.scheduler.ledger.compressions == 0


def test_the_default_gives_the_tokens_of_plain_vllm_in_a_pool_that_is_enough(
    start_engine: StartEngine, plain: list[list[int]]
) -> None:
    """A fifth more than all of them need at full length. A page holds 32 tokens."""
    needed = sum(-(-(len(prompt) + 96) // 32) for prompt in PROMPTS)
    engine = start_engine({}, pages=-(-needed * 6 // 5) + 1)  # one is vLLM's own
    assert engine.generate(PROMPTS, 96) == plain
    assert engine.scheduler.ledger.compressions == 0
    assert engine.scheduler.policy.config.policy == "elastic"

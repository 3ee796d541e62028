"""Two hundred requests through plain vLLM and the plugin without a budget: no difference."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.engine.engines import Engine, Prompt, StartEngine, prompt_of

pytestmark = pytest.mark.engine


def serve(engine: Engine) -> tuple[dict[str, tuple[int, ...]], int]:
    """Answers by request, and preemptions, of a fixed sequence of arrivals in a tight pool."""
    from vllm import SamplingParams

    draw = random.Random(0)
    waiting: list[tuple[str, Prompt, Any]] = [
        (
            f"{index}",
            prompt_of(draw.randint(1, 120), seed=index),
            SamplingParams(temperature=0, max_tokens=draw.randint(1, 100), ignore_eos=True),
        )
        for index in range(200)
    ]
    answers: dict[str, tuple[int, ...]] = {}
    preemptions = 0
    preempt = engine.scheduler._preempt_request

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal preemptions
        preemptions += 1
        preempt(*args, **kwargs)

    engine.scheduler._preempt_request = counted
    try:
        while waiting or engine.llm.llm_engine.has_unfinished_requests():
            while waiting and draw.random() < 0.5:
                engine.add(*waiting.pop())
            for output in engine.llm.llm_engine.step():
                if output.finished:
                    answers[output.request_id] = tuple(output.outputs[0].token_ids)
    finally:
        del engine.scheduler._preempt_request
    engine.assert_pool_is_whole()
    return answers, preemptions


@pytest.mark.parametrize("caching", [False, True], ids=["", "prefix-caching"])
def test_the_same_tokens_and_preemptions(start_engine: StartEngine, caching: bool) -> None:
    settings: dict[str, Any] = {
        "pages": 32,
        "enable_prefix_caching": caching,
        "max_num_batched_tokens": 256,
    }
    expected, preemptions = serve(start_engine(**settings))
    assert len(expected) == 200
    assert preemptions > 20
    answers, preempted = serve(start_engine({"policy": "full"}, **settings))
    assert answers == expected
    assert preempted == preemptions

"""What each policy's evictions cost the default model: bounds that a broken score would break.

Each upper bound is about 1.5 times what was measured when it was set; the lower ones see that
something was evicted at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from growpage.bench.distributions import logits_files
from growpage.bench.forced_replay import Reference, generate, replay
from growpage.bench.prompts import Prompt, tokenize
from tests.engine.engines import StartEngine

pytestmark = pytest.mark.engine

QUESTIONS = (
    "A baker sells 12 rolls in the morning and three times as many in the afternoon. Each roll "
    "costs 2 dollars. How much money does the baker take in a day? Explain each step.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "List the planets of the solar system in order, with one sentence about each of them.",
)
NEW_TOKENS = 144
TOGETHER = [0] * len(QUESTIONS)

SETTINGS: dict[str, Any] = {
    "logits_processors": ["growpage.bench.teacher:Teacher"],
    "async_scheduling": False,
    "max_model_len": 256,
}


@pytest.fixture(scope="module")
def reference(
    start_engine: StartEngine, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    prompts = tokenize(
        smollm2_path, [Prompt(id=text.split()[0], question=text) for text in QUESTIONS]
    )
    files = logits_files(
        smollm2_path, tmp_path_factory.mktemp("logits"), len(QUESTIONS), NEW_TOKENS
    )
    engine = start_engine({"policy": "full"}, pages=24, model=smollm2_path, **SETTINGS)
    return generate(engine.llm.llm_engine, prompts, NEW_TOKENS, 1, keep=files)


@pytest.mark.parametrize(
    ("budget", "pages", "least", "most"),
    [
        pytest.param({"policy": "full"}, 24, 0, 1e-9, id="full"),
        pytest.param({"policy": "fixed", "budget": 64}, 24, 0.08, 0.25, id="fixed"),
        pytest.param(
            {"policy": "fixed", "budget": 64, "score": "random"}, 24, 0.15, 0.6, id="random"
        ),
        pytest.param({"policy": "growpage", "tau": 4}, 24, 0.01, 0.065, id="growpage"),
        pytest.param({"policy": "every"}, 24, 0.01, 0.065, id="every"),
        pytest.param({"policy": "elastic"}, 9, 0.005, 0.04, id="elastic"),
    ],
)
def test_what_is_lost(
    start_engine: StartEngine,
    smollm2_path: Path,
    reference: Reference,
    budget: dict[str, Any],
    pages: int,
    least: float,
    most: float,
) -> None:
    engine = start_engine(budget, pages=pages, model=smollm2_path, **SETTINGS)
    result = replay(engine.llm.llm_engine, reference, TOGETHER)
    assert least <= result.kl <= most

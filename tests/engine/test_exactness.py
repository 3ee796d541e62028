"""Reachability and exactness of compressed caches.

Throughput cannot see a cache that was moved wrongly, so it is checked here against what was
written: every kept key and value is bit for bit one that the request wrote, in order, in pages that
it owns; and every compressed decode row's attention, derived again in float32 from the block table,
is what the kernel returned.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.engines import Prompt, StartEngine, prompt_of
from tests.engine.observer import TOLERANCE, observed
from tests.engine.tiny_models import tiny_llama, tiny_qwen2

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("dtype", "head_size", "layout"),
    [
        ("bfloat16", 64, "amx"),
        ("float16", 64, "vec"),
        ("float32", 64, "vec"),
        ("float32", 80, "vec16"),
        ("bfloat16", 80, "vec16"),
    ],
)
@pytest.mark.parametrize("score", ["window", "random"])
def test_kept_tokens_and_attention_in_every_layout(
    start_engine: StartEngine,
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str,
    head_size: int,
    layout: str,
    score: str,
) -> None:
    if layout == "amx" and not torch.cpu._is_amx_tile_supported():
        layout = "vec"
    model = tiny_llama(tmp_path_factory, head_size=head_size, layers=3, heads=6, kv_heads=2)
    engine = start_engine(
        {"policy": "fixed", "budget": 128, "score": score, "step": 64 if score == "random" else 32},
        model=model,
        dtype=dtype,
        pages=40,
    )
    assert engine.runner.budgeter.cache.layout.name == layout
    prompts = [[(7 * n + t) % 250 for t in range(20 + 45 * n)] for n in range(5)]
    with observed(engine) as seen:
        engine.generate(prompts, 130)
    assert seen.compactions >= 10
    assert seen.rows > 3 * 5 * 20
    assert seen.worst < TOLERANCE[getattr(torch, dtype)]


@pytest.mark.parametrize(
    ("dtype", "cache_dtype", "layout"),
    [("bfloat16", "fp8", "amx"), ("float32", "fp8", "vec"), ("float16", "fp8_e5m2", "vec")],
)
def test_eight_bit_pages(
    start_engine: StartEngine,
    tmp_path_factory: pytest.TempPathFactory,
    own_centres: Path,
    dtype: str,
    cache_dtype: str,
    layout: str,
) -> None:
    if layout == "amx" and not torch.cpu._is_amx_tile_supported():
        layout = "vec"
    engine = start_engine(
        {"policy": "fixed", "budget": 128},
        model=tiny_qwen2(tmp_path_factory, key_offset=200),
        dtype=dtype,
        kv_cache_dtype=cache_dtype,
        pages=40,
    )
    assert engine.runner.budgeter.cache.layout.name == layout
    with observed(engine) as seen:
        engine.generate([[(7 * n + t) % 250 for t in range(20 + 45 * n)] for n in range(4)], 130)
    assert seen.compactions >= 8
    assert seen.rows > 2 * 4 * 20
    # vLLM's 8-bit AMX kernel is some ten times as far off as its 16-bit one on the same numbers.
    tolerance = 0.15 if layout == "amx" else TOLERANCE[getattr(torch, dtype)]
    assert seen.worst < tolerance


def test_the_default_model(start_engine: StartEngine, smollm2_path: Path) -> None:
    engine = start_engine({"policy": "fixed", "budget": 64}, pages=32, model=smollm2_path)
    with observed(engine) as seen:
        engine.generate(["Write a long list of animals:", "The history of Rome"], 80)
    assert seen.compactions >= 2
    assert seen.rows > 30 * 2 * 20
    assert seen.worst < TOLERANCE[torch.bfloat16]


def test_the_compiled_mode(
    start_engine: StartEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The tap and the physical lengths are outside the compiled graph, and work beside it.

    In float32, and with prompts that plain vLLM answers alike compiled and eagerly.
    """
    compiled, eager = (
        start_engine(
            {"policy": "fixed", "budget": 128},
            model=tiny_llama(tmp_path_factory, head_size=64, layers=2, heads=6, kv_heads=2),
            dtype="float32",
            pages=40,
            enforce_eager=is_eager,
        )
        for is_eager in (False, True)
    )
    prompts: list[Prompt] = [prompt_of(20 + 30 * seed, seed) for seed in range(4)]
    with observed(compiled) as seen:
        outputs = compiled.generate(prompts, 130)
    assert seen.compactions >= 3
    assert seen.rows > 2 * 2 * 20
    assert seen.worst < TOLERANCE[torch.float32]
    assert outputs == eager.generate(prompts, 130)
    assert compiled.scheduler.ledger == eager.scheduler.ledger

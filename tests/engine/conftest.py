"""Real vLLM engines on the CPU, in this process, shared by all tests that can share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import growpage
from tests.engine.engines import PAGE, Engine, StartEngine


@pytest.fixture(scope="session")
def start_engine(smollm2_path: Path) -> StartEngine:
    """Start an engine with given settings, or hand out the one that has them already.

    ``budget`` holds growpage's settings; none is plain vLLM. ``pages`` is the size of the pool.
    """
    import os

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    started: dict[str, Engine] = {}

    def start(
        budget: dict[str, Any] | None = None,
        *,
        pages: int = 64,
        model: Path | None = None,
        dtype: str = "bfloat16",
        page_bytes: int | None = None,
        **settings: Any,
    ) -> Engine:
        key = repr((budget, pages, model, dtype, sorted(settings.items())))
        if key not in started:
            if page_bytes is None:  # SmolLM2: 30 layers, 3 KV heads, head size 64
                page_bytes = 30 * 3 * PAGE * 2 * 64 * (4 if dtype == "float32" else 2)
            settings = {
                "max_model_len": 1024,
                "max_num_seqs": 16,
                "enable_prefix_caching": False,
                "enforce_eager": True,
                **({} if budget is None else growpage.engine_kwargs(**budget)),
                **settings,
            }
            started[key] = Engine(
                LLM(
                    str(model or smollm2_path),
                    dtype=dtype,
                    block_size=PAGE,
                    # vLLM keeps one page for itself.
                    kv_cache_memory_bytes=page_bytes * (pages + 1),
                    **settings,
                )
            )
        return started[key]

    return start

"""An engine in this process, as every benchmark starts it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from growpage.bench.contenders import Contender
from growpage.bench.pool import BLOCK_SIZE, Dtype, page_bytes


def start_engine(
    model: Path,
    contender: Contender,
    *,
    pool_pages: int,
    concurrency: int,
    longest: int,
    block_size: int = BLOCK_SIZE,
    prefix_caching: bool = False,
    async_scheduling: bool = False,
    eager: bool = True,
    dtype: Dtype = "auto",
    seed: int = 0,
    logits_processors: Sequence[str] = (),
) -> Any:
    """vLLM's ``LLM`` with a pool of exactly so many pages.

    Args:
        model: a model's folder.
        contender: what manages the cache, and how it is stored.
        pool_pages: pages that requests can hold.
        concurrency: requests at once, at most.
        longest: tokens of the longest request, prompt and answer.
        block_size: tokens a page.
        prefix_caching: whether prompts share pages.
        async_scheduling: whether a step is scheduled before the last one has ended.
        eager: whether the model runs as it is, and not compiled.
        dtype: what the model is served in.
        seed: vLLM's.
        logits_processors: names of logits processors.

    Raises:
        RuntimeError: the engine's pool has not the size that was asked for.
    """
    # Only now: vLLM reads these when it is imported.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm import LLM

    from growpage import engine_kwargs
    from growpage.bench.recorder import pool_size

    settings = contender.settings
    llm = LLM(
        str(model),
        dtype=dtype,
        enforce_eager=eager,
        async_scheduling=async_scheduling,
        enable_prefix_caching=prefix_caching,
        block_size=block_size,
        max_num_seqs=concurrency,
        # Whole pages, so that the longest request fits and vLLM's start-up check asks no more.
        max_model_len=-(-longest // block_size) * block_size,
        kv_cache_dtype=contender.kv_cache_dtype,
        # And the null block.
        kv_cache_memory_bytes=(pool_pages + 1)
        * page_bytes(model, block_size, contender.kv_cache_dtype, dtype),
        seed=seed,
        logits_processors=list(logits_processors) or None,
        **({} if settings is None else engine_kwargs(**settings)),
    )
    made = pool_size(llm.llm_engine.engine_core.engine_core.scheduler)
    if made != pool_pages:
        raise RuntimeError(f"the pool should have {pool_pages} pages, vLLM made {made}")
    return llm

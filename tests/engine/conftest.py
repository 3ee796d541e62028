"""Real vLLM engines on the CPU, in this process, shared by all tests that can share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import growpage
from growpage.engine.checks import has_eight_bit_kernel
from tests.engine.engines import (
    NO_EIGHT_BIT_KERNEL,
    PAGE,
    Engine,
    StartEngine,
    has_eight_bit_pages,
)
from tests.engine.tiny_models import tiny_llama


@pytest.fixture(scope="session")
def start_engine(tmp_path_factory: pytest.TempPathFactory) -> StartEngine:
    """Start an engine with given settings, or hand out the one that has them already.

    ``budget`` holds growpage's settings; none is plain vLLM. ``pages`` is the size of the pool.
    Without a ``model`` it is a tiny Llama with random weights, whose steps take milliseconds.
    A test of an 8-bit cache is skipped where vLLM has none.
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
        **settings: Any,
    ) -> Engine:
        runner = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
        key = repr((budget, pages, model, dtype, sorted(settings.items()), runner))
        if has_eight_bit_pages(settings) and not has_eight_bit_kernel():
            pytest.skip(NO_EIGHT_BIT_KERNEL)
        if key not in started:
            folder = model or tiny_llama(tmp_path_factory)
            settings = {
                "max_model_len": 1024,
                "max_num_seqs": 16,
                "enable_prefix_caching": False,
                "enforce_eager": True,
                "skip_tokenizer_init": not (folder / "tokenizer.json").exists(),
                **({} if budget is None else growpage.engine_kwargs(**budget)),
                **settings,
            }
            llm = LLM(
                str(folder),
                dtype=dtype,
                block_size=PAGE,
                # vLLM keeps one page for itself.
                kv_cache_memory_bytes=_page_bytes(folder, dtype, settings) * (pages + 1),
                **settings,
            )
            # The process ends with the session. vLLM's shutdown would walk the whole heap several
            # times for each engine, which takes longer than the tests.
            llm.llm_engine.engine_core._finalizer.detach()
            started[key] = Engine(llm)
        return started[key]

    return start


def _page_bytes(folder: Path, dtype: str, settings: dict[str, Any]) -> int:
    """The size of a page of all layers, on each worker."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    width = 4 if dtype == "float32" else 2
    if has_eight_bit_pages(settings):
        width = 1
    head_size = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    kv_heads = max(kv_heads // settings.get("tensor_parallel_size", 1), 1)
    return config.num_hidden_layers * kv_heads * PAGE * 2 * head_size * width


@pytest.fixture(scope="session")
def centres_folder(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for the tests alone, once the default model has been found in the user's."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def own_centres(centres_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the centres that engines started in this test keep."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(centres_folder))
    return centres_folder / "growpage" / "centres"

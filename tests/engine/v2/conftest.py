"""Engines under Model Runner V2, beside engines under V1 to compare with, all in one process.

These tests need environment variables that vLLM and Triton read when they are imported:
``tests/engine/test_model_runner_v2.py`` runs them in a process of their own.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import pytest

from tests.engine.engines import Engine, StartEngine
from tests.engine.tiny_models import tiny_llama

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
collect_ignore_glob = [] if os.environ.get(RUNNER) == "1" else ["test_*.py"]


class Start(Protocol):
    def __call__(
        self, budget: dict[str, Any] | None, *, v2: bool = True, **settings: Any
    ) -> Engine:
        """As ``start_engine``, with a still smaller model: every step costs some 0.1 s here."""


@pytest.fixture(scope="session")
def start(start_engine: StartEngine, tmp_path_factory: pytest.TempPathFactory) -> Start:
    import vllm.envs

    model = tiny_llama(tmp_path_factory, head_size=32)

    def start(budget: dict[str, Any] | None, *, v2: bool = True, **settings: Any) -> Engine:
        # vLLM stops looking at the environment once an engine has started.
        vllm.envs.disable_envs_cache()
        os.environ[RUNNER] = "1" if v2 else "0"
        return start_engine(
            budget,
            model=model,
            dtype="float32",
            **{
                "pages": 40,
                "max_model_len": 256,
                "max_num_seqs": 4,
                "max_num_batched_tokens": 64,
                **settings,
            },
        )

    return start

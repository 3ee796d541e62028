"""What every test runs with: no hub, no telemetry, at most two threads a process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tiny_server import ServeTiny

# Before anything imports torch, transformers or vLLM, which read these once.
os.environ["OMP_NUM_THREADS"] = str(min(2, int(os.environ.get("OMP_NUM_THREADS") or 2)))
# Spinning threads make engines ten times slower wherever something else runs beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# vLLM's CPU build binds all engines to the same core, where they wait for each other.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The folder of the default model, built on the first run of a machine."""
    from growpage.models import smollm2

    return smollm2.ensure()


@pytest.fixture(scope="session")
def tiny_worded_model(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Path:
    """Random weights with the default model's vocabulary, tokenizer and chat template."""
    from tests.engine.tiny_models import tiny_llama

    folder = tiny_llama(tmp_path_factory, vocab_size=49152)
    for file in (*smollm2_path.glob("*token*"), *smollm2_path.glob("*.jinja")):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="session")
def serve_tiny(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> ServeTiny:
    """Start a server with these flags that answers fast."""
    from tests.tiny_server import tiny_server

    return tiny_server(tmp_path_factory, smollm2_path)

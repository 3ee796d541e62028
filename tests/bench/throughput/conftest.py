"""A model that is fast, and whose prompts are texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.engine.tiny_models import tiny_llama


@pytest.fixture(scope="session")
def tiny_worded_model(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Path:
    """Random weights with the default model's vocabulary and its tokenizer."""
    folder = tiny_llama(tmp_path_factory, vocab_size=49152)
    for file in smollm2_path.glob("*token*"):
        shutil.copy(file, folder)
    return folder

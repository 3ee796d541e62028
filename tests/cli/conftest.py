"""A server that starts and answers fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from growpage.bench.server import Server, serve
from tests.engine.tiny_models import tiny_llama

MODEL = "tiny"
POOL_PAGES = 64
_PAGE_BYTES = 2 * 2 * 32 * 2 * 64 * 2  # layers, KV heads, tokens, keys and values, dims, bfloat16

ServeTiny = Callable[[Sequence[str]], AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def serve_tiny(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> ServeTiny:
    """Serve a tiny random model, whose tokens the default model's tokenizer can name."""
    model = tiny_llama(tmp_path_factory)

    @contextmanager
    def serving(flags: Sequence[str]) -> Iterator[Server]:
        arguments = [
            *(str(model), "--tokenizer", str(smollm2_path), "--served-model-name", MODEL),
            *("--block-size", "32", "--max-model-len", "512", "--max-num-seqs", "8"),
            *("--kv-cache-memory-bytes", str((POOL_PAGES + 1) * _PAGE_BYTES), "--enforce-eager"),
            *flags,
        ]
        with serve(arguments, tmp_path_factory.mktemp("server") / "log") as server:
            yield server

    return serving

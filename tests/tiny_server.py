"""A real server that starts and answers fast."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from growpage.bench.server import Server, serve
from tests.engine.engines import prompt_of
from tests.engine.tiny_models import tiny_llama

MODEL = "tiny"
POOL_PAGES = 64
PAGE_BYTES = 2 * 2 * 32 * 2 * 64 * 2
"""Of its layers, KV heads, tokens, keys and values of 64 dimensions, bfloat16."""

ServeTiny = Callable[[Sequence[str]], AbstractContextManager[Server]]


def tiny_server(folders: pytest.TempPathFactory, tokenizer: Path) -> ServeTiny:
    """Serves a tiny random model, which has no words of its own: any tokenizer will do."""
    model = tiny_llama(folders)

    @contextmanager
    def serving(flags: Sequence[str]) -> Iterator[Server]:
        arguments = [
            *(str(model), "--tokenizer", str(tokenizer), "--served-model-name", MODEL),
            *("--block-size", "32", "--max-model-len", "512", "--max-num-seqs", "8"),
            *("--kv-cache-memory-bytes", str((POOL_PAGES + 1) * PAGE_BYTES), "--enforce-eager"),
            *flags,
        ]
        with serve(arguments, folders.mktemp("server") / "log") as server:
            yield server

    return serving


@contextmanager
def load(servers: Sequence[Server], clients: int) -> Iterator[None]:
    """As many clients of each server, that ask again as soon as they are answered."""
    over = threading.Event()

    def ask(server: Server, seed: int) -> None:
        # Of different lengths, or all would end, and begin, together.
        body = {"model": MODEL, "prompt": prompt_of(20, seed), "max_tokens": 300 + 10 * seed}
        # Where the server has ended, its own block says why.
        with httpx.Client(timeout=300) as client, suppress(httpx.TransportError):
            while not over.is_set():
                client.post(f"{server.address}/v1/completions", json={**body, "ignore_eos": True})

    threads = [
        threading.Thread(target=ask, args=(server, seed))
        for server in servers
        for seed in range(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()

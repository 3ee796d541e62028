"""A real server with the plugin, scraped by Prometheus: the dashboard shows data, an alert comes
and goes.

Its requests may hold three pages of 32 tokens each, which is what they are promised, so that growth
is refused as steadily as there is load.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from growpage.bench.server import Server, serve
from tests.engine.engines import prompt_of
from tests.engine.tiny_models import tiny_llama
from tests.monitoring.queries import dashboard_queries
from tests.monitoring.stack import running, wait_until

pytestmark = pytest.mark.engine

MODEL = "tiny"
PAGE_BYTES = 2 * 2 * 32 * 128 * 2
"""Of the tiny model: layers, KV heads, tokens, keys and values of 64 dimensions, bfloat16."""
FLAGS = (
    *("--growpage-policy", "elastic", "--growpage-min-pages", "2", "--growpage-max-pages", "3"),
    *("--growpage-track-entropy", "true", "--served-model-name", MODEL, "--dtype", "bfloat16"),
    # vLLM keeps one page more, its null block.
    *("--block-size", "32", "--kv-cache-memory-bytes", str(PAGE_BYTES * (20 + 1))),
    *("--max-model-len", "512", "--max-num-seqs", "8", "--enforce-eager"),
)
CLIENTS = 10
ALERT = ("tickets", "GrowPageGrowthRefused")
UNHEARD_OF = ("growpage_growths_total", "growpage_reclaimed_pages_total")
"""Counters that exist from their first event on: under this load nobody grows or gives a page."""


@contextmanager
def load(server: Server) -> Iterator[None]:
    """Clients that ask again as soon as they are answered, until the block is left."""
    over = threading.Event()

    def ask(seed: int) -> None:
        # Of different lengths, or all would end, and begin, together.
        tokens = 200 + 10 * seed
        body = {"model": MODEL, "prompt": prompt_of(20, seed), "max_tokens": tokens}
        body |= {"ignore_eos": True}
        # Where the server has ended, its own block says why.
        with httpx.Client(timeout=300) as client, suppress(httpx.TransportError):
            while not over.is_set():
                client.post(f"{server.address}/v1/completions", json=body)

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join()


def concrete(query: str) -> str:
    """With every variable of the dashboard chosen, at the pace of the tests."""
    query = re.sub(r"\$__rate_interval", "10s", query).replace("[1h]", "[10s]")
    return re.sub(r"\$[a-z]+", ".*", query)


def test_the_dashboard_shows_data_and_an_alert_fires_and_ends(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path
) -> None:
    model = str(tiny_llama(tmp_path_factory))
    # The tiny model has no words of its own; any tokenizer will do.
    flags = [model, "--tokenizer", str(smollm2_path), *FLAGS]
    queries = {concrete(query.text): query.place for query in dashboard_queries()}
    empty = {query for query in queries if not any(name in query for name in UNHEARD_OF)}
    with (
        serve(flags, tmp_path / "server.log") as server,
        running(tmp_path, [server.address.removeprefix("http://")]) as stack,
    ):

        def show_all() -> bool:
            empty.difference_update([query for query in empty if stack.query(query)])
            return not empty

        with load(server):
            wait_until(
                lambda: ALERT in stack.notices.fired(), lambda: str(stack.query("ALERTS")), 120
            )
            wait_until(show_all, lambda: str([queries[query] for query in empty]), 60, every_s=1)
        wait_until(lambda: ALERT not in stack.notices.firing(), lambda: "the alert stays", 60)
        refused = [alert for _, alert in stack.notices.received if "reason" in alert["labels"]]
        assert {alert["labels"]["model_name"] for alert in refused} == {MODEL}
        assert [rule for rule in stack.rules() if rule["health"] != "ok"] == []
        assert stack.query("sum(vllm:num_requests_running)")[0]["value"][1] == "0"

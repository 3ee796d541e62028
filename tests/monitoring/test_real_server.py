"""A real server with the plugin, scraped by Prometheus: the dashboard shows data, an alert comes
and goes.

Its pool is small and requests may hold three pages of 32 tokens each, so that growth is refused as
long as there is load.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from growpage.bench.server import Server, serve
from growpage.bench.soak import SERVER_FLAGS
from growpage.models.smollm2 import DEFAULT_MODEL_NAME as MODEL
from tests.monitoring.queries import dashboard_queries
from tests.monitoring.stack import running, wait_until

pytestmark = pytest.mark.engine

FLAGS = (
    *("--growpage-policy", "elastic", "--growpage-min-pages", "2", "--growpage-max-pages", "3"),
    *("--growpage-track-entropy", "true"),
    *SERVER_FLAGS,
)
CLIENTS = 14
ALERT = ("tickets", "GrowPageGrowthRefused")


@contextmanager
def load(server: Server) -> Iterator[None]:
    """Clients that ask again as soon as they are answered, until the block is left."""
    over = threading.Event()

    def ask(number: int) -> None:
        while not over.is_set():
            body = {
                "model": MODEL,
                "prompt": f"Write a long list of things that begin with {number}:",
                "max_tokens": 160,
                "ignore_eos": True,
            }
            httpx.post(f"{server.address}/v1/completions", json=body, timeout=120)

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
    tmp_path: Path, smollm2_path: Path
) -> None:
    queries = {concrete(query.text): query.place for query in dashboard_queries()}
    with (
        serve(FLAGS, tmp_path / "server.log") as server,
        running(tmp_path, [server.address.removeprefix("http://")]) as stack,
    ):

        def empty() -> set[str]:
            return {
                f"{place}: {query}" for query, place in queries.items() if not stack.query(query)
            }

        with load(server):
            wait_until(
                lambda: ALERT in stack.notices.fired(), lambda: str(stack.query("ALERTS")), 90
            )
            wait_until(lambda: not empty(), lambda: "\n".join(empty()), 30, every_s=1)
        wait_until(lambda: ALERT not in stack.notices.firing(), lambda: "the alert stays", 60)
        refused = [alert for _, alert in stack.notices.received if alert["labels"].get("reason")]
        assert {alert["labels"]["model_name"] for alert in refused} == {MODEL}
        assert [rule for rule in stack.rules() if rule["health"] != "ok"] == []
        # What was counted while nobody asked any more is 0, and not the past.
        assert stack.query("sum(vllm:num_requests_running)")[0]["value"][1] == "0"

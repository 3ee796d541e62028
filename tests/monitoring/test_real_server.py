"""A real server with the plugin, scraped by Prometheus: the dashboard shows data, an alert comes
and goes.

Its requests may hold three pages of 32 tokens each, which is what they are promised, so that growth
is refused as steadily as there is load.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.monitoring.queries import dashboard_queries
from tests.monitoring.stack import running, wait_until
from tests.tiny_server import MODEL, PAGE_BYTES, ServeTiny, load

pytestmark = pytest.mark.engine

FLAGS = (
    *("--growpage-policy", "elastic", "--growpage-min-pages", "2", "--growpage-max-pages", "3"),
    *("--growpage-track-entropy", "true", "--kv-cache-memory-bytes", str(21 * PAGE_BYTES)),
)
CLIENTS = 10
ALERT = ("tickets", "GrowPageGrowthRefused")
UNHEARD_OF = ("growpage_growths_total", "growpage_reclaimed_pages_total")
"""Counters that exist from their first event on: under this load nobody grows or gives a page."""


def concrete(query: str) -> str:
    """With every variable of the dashboard chosen, at the pace of the tests."""
    query = re.sub(r"\$__rate_interval", "10s", query).replace("[1h]", "[10s]")
    return re.sub(r"\$[a-z]+", ".*", query)


def test_the_dashboard_shows_data_and_an_alert_fires_and_ends(
    tmp_path: Path, serve_tiny: ServeTiny
) -> None:
    queries = {concrete(query.text): query.place for query in dashboard_queries()}
    empty = {query for query in queries if not any(name in query for name in UNHEARD_OF)}
    with (
        serve_tiny(FLAGS) as server,
        running(tmp_path, [server.address.removeprefix("http://")]) as stack,
    ):

        def show_all() -> bool:
            empty.difference_update([query for query in empty if stack.query(query)])
            return not empty

        with load([server], CLIENTS):
            wait_until(
                lambda: ALERT in stack.notices.fired(), lambda: str(stack.query("ALERTS")), 120
            )
            wait_until(show_all, lambda: str([queries[query] for query in empty]), 60, every_s=1)
        wait_until(lambda: ALERT not in stack.notices.firing(), lambda: "the alert stays", 60)
        refused = [alert for _, alert in stack.notices.received if "reason" in alert["labels"]]
        assert {alert["labels"]["model_name"] for alert in refused} == {MODEL}
        assert [rule for rule in stack.rules() if rule["health"] != "ok"] == []
        assert stack.query("sum(vllm:num_requests_running)")[0]["value"][1] == "0"

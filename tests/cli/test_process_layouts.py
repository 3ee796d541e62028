"""The figures are right however many processes a server consists of."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from growpage.bench.server import Server
from tests.engine.engines import prompt_of
from tests.tiny_server import MODEL, POOL_PAGES, ServeTiny

pytestmark = pytest.mark.engine

REQUESTS = 6
TOKENS = 150
COMPRESSIONS = REQUESTS * 2
"""Of a budget of 3 pages: 9 + 149 tokens, less 96, are two steps of 32, the second begun."""


def ask(server: Server, seed: int) -> None:
    question = {"model": MODEL, "prompt": prompt_of(9, seed), "max_tokens": TOKENS}
    # A connection each, so that every server process gets some.
    httpx.post(
        f"{server.address}/v1/completions",
        json={**question, "temperature": 0, "ignore_eos": True},
        timeout=300,
    ).raise_for_status()


def by_engine(server: Server, path: str) -> dict[str, Counter[str]]:
    """Each sample of growpage summed over its labels, by engine."""
    text = httpx.get(server.address + path, timeout=30).raise_for_status().text
    found: dict[str, Counter[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("growpage_"):
                assert sample.labels["model_name"] == MODEL
                engine = found.setdefault(sample.labels["engine"], Counter())
                engine[sample.name] += sample.value
    return found


@pytest.mark.parametrize(
    ("flags", "engines", "pages"),
    [
        # Each worker has half of the heads, so the same memory holds twice the pages.
        (["--api-server-count", "2", "--tensor-parallel-size", "2"], 1, 2 * POOL_PAGES + 1),
        # vLLM starts as many servers.
        (["--data-parallel-size", "2"], 2, POOL_PAGES),
    ],
    ids=["two-servers-two-workers", "two-servers-two-engines"],
)
def test_figures_add_up(serve_tiny: ServeTiny, flags: list[str], engines: int, pages: int) -> None:
    budget = ["--growpage-policy", "fixed", "--growpage-budget", "96", "--growpage-live"]
    with serve_tiny([*budget, *flags]) as server:
        with ThreadPoolExecutor(REQUESTS) as clients:
            list(clients.map(lambda seed: ask(server, seed), range(REQUESTS)))
        for path in ("/metrics", "/metrics/growpage"):
            found = by_engine(server, path)
            assert set(found) == {str(engine) for engine in range(engines)}
            total: Counter[str] = Counter()
            for each in found.values():
                assert each["growpage_max_num_seqs"] == 8
                assert each["growpage_mode_info"] == 1
                assert each["growpage_kv_capacity_tokens"] == pages * 32
                assert each["growpage_kv_kept_tokens"] == 0, "nobody runs any more"
                assert each["growpage_request_pages_count"] > 0, "every engine had its share"
                total += each
            assert total["growpage_request_pages_count"] == REQUESTS
            assert total["growpage_request_pages_sum"] == 3 * REQUESTS
            assert total["growpage_kv_demand_tokens_sum"] == REQUESTS * (9 + TOKENS - 1)
            assert total["growpage_compressions_total"] == COMPRESSIONS
            assert total["growpage_compactions_confirmed_total"] == COMPRESSIONS
            assert total["growpage_evicted_tokens_total"] == 32 * COMPRESSIONS
            assert total["growpage_decision_seconds_bucket"] > 0
        for _ in range(4):  # whichever process answers
            state = httpx.get(f"{server.address}/growpage/state.json").raise_for_status().json()
            assert [each["engine"] for each in state["engines"]] == list(range(engines))
            assert sum(each["totals"]["compressions"] for each in state["engines"]) == COMPRESSIONS

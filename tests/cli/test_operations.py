"""One server as an operator runs it, with everything on that can be watched or changed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from growpage.bench.server import Server
from growpage.telemetry.catalogue import METRICS, exposed_names
from growpage.telemetry.tenants import HEADER
from tests.engine.engines import prompt_of
from tests.tiny_server import MODEL, ServeTiny

pytestmark = pytest.mark.engine

KEY = "open-sesame"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OpenTelemetry collector that keeps what it is sent."""

    spans: list[Any] = field(default_factory=list)

    def Export(self, request: Any, context: Any) -> Any:
        """One batch, as OTLP sends it."""
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[dict[str, Any]]:
        """The attributes of every span of that name, with its ids."""
        return [
            {
                "trace": span.trace_id.hex(),
                "parent": span.parent_span_id.hex(),
                "span": span.span_id.hex(),
                **{a.key: a.value.int_value or a.value.string_value for a in span.attributes},
            }
            for span in self.spans
            if span.name == name
        ]


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, int]]:
    kept = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(kept, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield kept, port
    server.stop(None).wait()


@pytest.fixture(scope="module")
def rollout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rollout") / "rollout.yaml"
    path.write_text("mode: observe\nmax_growth_rate: null\nchanged_by: alice\n")
    return path


@pytest.fixture(scope="module")
def server(
    serve_tiny: ServeTiny,
    collector: tuple[Collector, int],
    rollout: Path,
) -> Iterator[Server]:
    flags = [
        *("--growpage-policy", "growpage", "--growpage-min-pages", "3"),
        # A tiny model's attention narrows: it grows nevertheless, from 3 pages to 4.
        *("--growpage-max-pages", "4", "--growpage-tau", "-1000"),
        *("--growpage-track-entropy", "true"),
        *("--growpage-live", "--growpage-rollout", str(rollout), "--api-key", KEY),
        *("--otlp-traces-endpoint", f"http://127.0.0.1:{collector[1]}"),
    ]
    with serve_tiny(flags) as running:
        yield running


def ask(server: Server, tenant: str | None = None, tokens: int = 200, **headers: str) -> None:
    """Generate as many tokens; 200 exceed a budget of 4 pages."""
    answer = httpx.post(
        f"{server.address}/v1/completions",
        json={
            "model": MODEL,
            "prompt": prompt_of(9),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        },
        headers={
            "Authorization": f"Bearer {KEY}",
            **({} if tenant is None else {HEADER: tenant}),
            **headers,
        },
        timeout=300,
    )
    answer.raise_for_status()


def samples(server: Server, path: str = "/metrics") -> Samples:
    text = httpx.get(server.address + path, timeout=30).raise_for_status().text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(found: Samples, name: str, **labels: str) -> float:
    return sum(
        value
        for (sample, has), value in found.items()
        if sample == name and labels.items() <= set(has)
    )


def state(server: Server) -> Any:
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.get(f"{server.address}/growpage/state.json", headers=headers).json()


def turn(server: Server, rollout: Path, text: str) -> None:
    """Change the rollout file, and wait until the engine looks at it again."""
    rollout.write_text(text)
    time.sleep(1.1)


def eventually(condition: Callable[[], bool], within_s: float = 15) -> bool:
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_before_the_first_request_there_is_nothing_to_see(server: Server) -> None:
    found = samples(server)
    assert total(found, "growpage_kv_page_allocations_total") == 0
    assert ("growpage_kv_page_allocations_total", _engine()) in found
    assert total(found, "growpage_max_num_seqs") == 8
    assert total(found, "growpage_kv_capacity_tokens") == 64 * 32
    assert total(found, "growpage_mode_info", mode="observe", policy="growpage") == 1


def test_observed_decisions_are_counted_as_such(server: Server) -> None:
    ask(server)
    found = samples(server)
    assert total(found, "growpage_compressions_total", mode="observe") > 0
    assert total(found, "growpage_compressions_total", mode="enforce") == 0
    assert total(found, "growpage_evicted_tokens_total", mode="enforce") == 0
    assert total(found, "growpage_mode_info", mode="observe", policy="growpage") == 1
    assert state(server)["engines"][0]["mode"] == "observe"


def test_a_stage_turns_while_the_server_runs(server: Server, rollout: Path) -> None:
    turn(
        server,
        rollout,
        "mode: enforce\nmax_growth_rate: null\nonly: {tenants: [red]}\nchanged_by: bob\n",
    )
    before = samples(server)
    ask(server, "blue")
    after = samples(server)
    name = "growpage_compressions_total"
    assert total(after, name, mode="enforce") == total(before, name, mode="enforce")
    ask(server, "red")
    found = samples(server)
    assert total(found, name, mode="enforce") > 0
    assert total(found, "growpage_mode_info", mode="enforce") == 1
    assert total(found, "growpage_mode_info", mode="observe") == 0
    (line,) = re.findall(r"rollout changed by .*", server.log.read_text())
    assert line.startswith("rollout changed by bob: mode was observe, is enforce; only was None")


def test_every_metric_is_exported_and_makes_sense(server: Server) -> None:
    found = samples(server)
    names = {name for name, _ in found if name.startswith("growpage_")}
    assert names - exposed_names() == {n for n in names if n.endswith("_created")}
    assert exposed_names() - names == set()
    for (name, labels), value in found.items():
        if name.startswith("growpage_"):
            assert {("model_name", MODEL), ("engine", "0")} <= labels, name
            assert value >= 0, name
    compressions = total(found, "growpage_compressions_total", mode="enforce")
    assert total(found, "growpage_compactions_confirmed_total") == compressions
    assert total(found, "growpage_evicted_tokens_total", mode="enforce") == 32 * compressions
    assert total(found, "growpage_decision_seconds_count", phase="compact") == compressions
    assert total(found, "growpage_predicted_loss_count", mode="enforce") == compressions
    assert 0 < total(found, "growpage_predicted_loss_sum", mode="enforce") < compressions
    assert total(found, "growpage_page_allocation_latency_seconds_count") >= compressions
    assert total(found, "growpage_request_pages_count") == 3
    assert total(found, "growpage_request_pages_sum") == 7 + 7 + 4
    assert total(found, "growpage_kv_demand_tokens_sum") == 3 * (9 + 199)
    assert total(found, "growpage_kv_kept_tokens") == 0, "nobody runs"
    assert total(found, "growpage_orphaned_pages") == 0
    assert total(found, "growpage_max_num_seqs") == 8
    assert total(found, "growpage_intra_page_compress_ratio") == 1
    assert total(found, "growpage_lts_entropy_count") > 0
    capacity = total(found, "growpage_kv_capacity_tokens")
    assert capacity == state(server)["engines"][0]["total_pages"] * 32


def test_ours_are_shown_alone_too(server: Server) -> None:
    beside, alone = samples(server), samples(server, "/metrics/growpage")
    assert {name for name, _ in alone if not name.startswith("growpage_")} == set()
    ours = {key: value for key, value in beside.items() if key[0].startswith("growpage_")}
    assert ours == alone
    assert len(alone) > len(METRICS)


def test_the_live_page_honours_the_key_and_shows_no_text(server: Server) -> None:
    page = httpx.get(f"{server.address}/growpage")
    assert page.status_code == 200
    assert MODEL not in page.text
    assert httpx.get(f"{server.address}/growpage/state.json").status_code == 401
    (engine,) = state(server)["engines"]
    assert engine["model"] == MODEL
    assert engine["free_pages"] == engine["total_pages"]
    assert engine["requests"] == []
    assert {each["mode"] for each in engine["decisions"]} == {"observe", "enforce"}
    assert any(each["loss"] for each in engine["decisions"])


def test_running_requests_are_in_the_state(server: Server) -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server, "red", 480)
        seen: list[Any] = []

        def is_seen() -> bool:
            seen[:] = state(server)["engines"][0]["requests"]
            return bool(seen)

        assert eventually(is_seen, 60)
        (request,) = seen
        assert request["tenant"] == "red"
        assert request["mode"] == "enforce"
        assert request["kept"] + request["evicted"] == request["logical"]
        assert len(request["pages"]) <= 4
        asked.result()


def test_spans_say_what_a_request_held(server: Server, collector: tuple[Collector, int]) -> None:
    kept = collector[0]
    ask(server, "red", traceparent=f"00-{TRACE}-{PARENT}-01")
    assert eventually(lambda: any(s["trace"] == TRACE for s in kept.named("llm_request")))
    (span,) = [s for s in kept.named("llm_request") if s["trace"] == TRACE]
    assert span["parent"] == PARENT
    assert span["growpage.mode"] == "enforce"
    assert span["growpage.peak_pages"] == 4
    assert span["growpage.evicted_tokens"] == 32 * span["growpage.compressions"] > 0
    # Those before came without a trace: each has a span of the engine's own above vLLM's.
    # The engine's process sends its spans by itself, every few seconds.
    assert eventually(lambda: len(kept.named("growpage.request")) == 4)
    own = {each["span"]: each for each in kept.named("growpage.request")}
    children = [each for each in kept.named("llm_request") if each["trace"] != TRACE]
    assert len(children) == len(own) == 4
    for child in children:
        parent = own[child["parent"]]
        for name in ("growpage.peak_pages", "growpage.mode", "growpage.evicted_tokens"):
            assert child.get(name) == parent.get(name)


def _engine() -> frozenset[tuple[str, str]]:
    return frozenset({("model_name", MODEL), ("engine", "0")})

"""The whole way, from real servers under load to a decision."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from growpage.fleet.decision import Action, DataState, Decision
from tests.fleet.test_with_prometheus import QUICK, autoscale, eventually
from tests.prometheus_server import PrometheusServer
from tests.tiny_server import MODEL, ServeTiny, load

pytestmark = pytest.mark.engine


def value_of(decision: Decision, name: str) -> float:
    (value,) = [each.value for each in decision.inputs if each.name == name]
    return 0.0 if value is None else value


def test_load_an_outage_and_rest_of_real_servers(tmp_path: Path, serve_tiny: ServeTiny) -> None:
    flags = ["--growpage-policy", "elastic", "--growpage-min-pages", "2"]
    with ExitStack() as stack:
        start = ThreadPoolExecutor(2)
        servers = list(start.map(lambda _: stack.enter_context(serve_tiny(flags)), range(2)))
        prometheus = stack.enter_context(
            PrometheusServer(
                tmp_path / "prometheus",
                [server.address.removeprefix("http://") for server in servers],
            )
        )
        file = tmp_path / "autoscaler.yaml"
        settings = {
            "prometheus": {"url": prometheus.url, "retries": 0, "namespace_label": None},
            "interval_seconds": 0.5,
            "models": [{"model": MODEL, "target": "prod/tiny", "policy": QUICK}],
        }
        file.write_text(yaml.safe_dump(settings))

        with load(servers, clients=10):
            # Its slots are taken before its pages are: the pool must fill first.
            out = eventually(
                file,
                lambda each: (
                    each.action is Action.SCALE_OUT and (value_of(each, "kv_usage") > 0.85)
                ),
            )
            assert (out.current, out.desired, out.state) == (2, 3, DataState.FRESH)
            assert value_of(out, "max_num_seqs") == 2 * 8
            assert value_of(out, "kv_usage") == pytest.approx(1, abs=0.15)
            prometheus.kill()
            status, decision, _ = autoscale(file)
            assert (status, decision["action"], decision["data"]) == (4, "NO_ACTION", "ABSENT")
            assert f"cannot reach Prometheus at {prometheus.url}" in decision["reason"]

        prometheus.start()
        deadline = time.monotonic() + 60
        while decision["action"] != "SCALE_IN":
            assert decision["action"] == "NO_ACTION", decision
            assert time.monotonic() < deadline, decision
            status, decision, _ = autoscale(file)
        assert (status, decision["data"]) == (0, "FRESH")
        assert (decision["current"], decision["desired"]) == (2, 1)

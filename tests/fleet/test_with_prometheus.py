"""The whole way, on a real Prometheus that scrapes real HTTP servers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from growpage.fleet.config import AutoscalerSettings
from growpage.fleet.decision import Action, DataState, Decision
from growpage.fleet.wiring import autoscaler
from tests.fleet.exporter import Exporter
from tests.prometheus_server import PrometheusServer

QUICK: dict[str, Any] = {
    "min_replicas": 1,
    "max_replicas": 4,
    "max_age_seconds": 3,
    "usage_window_seconds": 2,
    "queue_seconds": 2,
    "scale_out_window_seconds": 1,
    "scale_in_window_seconds": 6,
    "prediction": False,
}


def autoscale(config: Path) -> tuple[int, dict[str, Any], str]:
    """What a one-shot call says of the only model."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "growpage", "autoscale", "--once", "--output", "json"),
            *("--config", str(config)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (line,) = done.stdout.splitlines()
    return done.returncode, json.loads(line), done.stderr


def eventually(config: Path, wanted: Callable[[Decision], bool], timeout: float = 40) -> Decision:
    """The first decision that is as wanted; fails with the last one if none comes."""
    settings = AutoscalerSettings.from_file(config)
    deadline = time.monotonic() + timeout
    with autoscaler(settings) as controller:
        while True:
            done = controller.run_once()
            if done.records and wanted(done.records[0].decision):
                return done.records[0].decision
            assert time.monotonic() < deadline, done
            time.sleep(0.2)


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    def write(url: str) -> Path:
        file = tmp_path / "autoscaler.yaml"
        settings = {
            "prometheus": {"url": url, "retries": 0, "namespace_label": None},
            "interval_seconds": 0.5,
            "models": [{"model": "smol", "target": "prod/smol", "policy": QUICK}],
        }
        file.write_text(yaml.safe_dump(settings))
        return file

    return write


def test_load_an_outage_and_rest(tmp_path: Path, config: Callable[[str], Path]) -> None:
    """Load: scale out. Prometheus is killed: hold, and say so. It is back, no load: scale in."""
    with ExitStack() as stack:
        pods = [stack.enter_context(Exporter()) for _ in range(2)]
        prometheus = stack.enter_context(
            PrometheusServer(tmp_path / "prometheus", [pod.address for pod in pods])
        )
        file = config(prometheus.url)
        for pod in pods:
            pod.set(usage=0.9, running=8, waiting=3)
        out = eventually(file, lambda each: each.action is Action.SCALE_OUT)
        assert (out.current, out.desired, out.state) == (2, 3, DataState.FRESH)
        assert "KV usage is 0.90, at least 0.85" in out.reason
        usage = next(each for each in out.inputs if each.name == "kv_usage")
        assert usage.value == pytest.approx(0.9)
        assert usage.age_seconds is not None
        assert 0 <= usage.age_seconds <= QUICK["max_age_seconds"]
        assert 'vllm:kv_cache_usage_perc{model_name="smol"}' in usage.query

        prometheus.kill()
        status, decision, _ = autoscale(file)
        assert status == 4
        assert (decision["action"], decision["data"]) == ("NO_ACTION", "ABSENT")
        assert decision["desired"] is None
        assert f"cannot reach Prometheus at {prometheus.url}" in decision["reason"]

        for pod in pods:
            pod.set()
        time.sleep(QUICK["max_age_seconds"])  # until the load before the outage is stale
        prometheus.start()
        waiting = eventually(file, lambda each: each.current is not None)
        assert waiting.action is Action.NO_ACTION, "the window is not full yet"
        assert waiting.current == 2
        deadline = time.monotonic() + 40
        while decision["action"] != "SCALE_IN":
            assert time.monotonic() < deadline, decision
            status, decision, _ = autoscale(file)
        assert (status, decision["data"]) == (0, "FRESH")
        assert (decision["current"], decision["desired"]) == (2, 1)

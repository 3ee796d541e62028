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

from tests.fleet.exporter import Exporter
from tests.fleet.prometheus_server import PrometheusServer

QUICK = {
    "min_replicas": 1,
    "max_replicas": 4,
    "max_age_seconds": 3,
    "usage_window_seconds": 2,
    "queue_seconds": 2,
    "scale_out_window_seconds": 1,
    "scale_in_window_seconds": 4,
    "prediction": False,
}


def autoscale(config: Path) -> tuple[int, list[dict[str, Any]], str]:
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
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def eventually(config: Path, wanted: Callable[[dict[str, Any]], bool], timeout: float = 20) -> Any:
    """The first decision that is as wanted; fails with the last one if none comes."""
    deadline = time.monotonic() + timeout
    while True:
        status, decisions, _ = autoscale(config)
        if decisions and wanted(decisions[0]):
            return status, decisions[0]
        assert time.monotonic() < deadline, (status, decisions)
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
        status, decision = eventually(file, lambda each: each["action"] == "SCALE_OUT")
        assert status == 0
        assert (decision["current"], decision["desired"]) == (2, 3)
        assert decision["data"] == "FRESH"
        assert "KV usage is 0.90, at least 0.85" in decision["reason"]

        prometheus.kill()
        status, decisions, _ = autoscale(file)
        assert status == 4
        assert decisions[0]["action"] == "NO_ACTION"
        assert decisions[0]["data"] == "ABSENT"
        assert decisions[0]["desired"] is None
        assert f"cannot reach Prometheus at {prometheus.url}" in decisions[0]["reason"]

        for pod in pods:
            pod.set()
        time.sleep(3.1)  # so that what was seen before the outage is stale
        prometheus.start()
        eventually(file, lambda each: each["data"] == "FRESH")
        begin = time.monotonic()
        status, decision = autoscale(file)[0], autoscale(file)[1][0]
        assert decision["action"] == "NO_ACTION", "the window is not yet full"
        assert "no scale-in" in decision["reason"]
        status, decision = eventually(file, lambda each: each["action"] == "SCALE_IN")
        assert time.monotonic() - begin >= 1
        assert status == 0
        assert (decision["current"], decision["desired"]) == (2, 1)

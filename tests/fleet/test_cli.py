"""``growpage autoscale``: what a user types, and what comes of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from growpage.budget.errors import ConfigError
from growpage.cli.app import app
from growpage.fleet.simulate import workloads
from tests.prometheus_server import free_port


def run(*arguments: str) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(app, ["autoscale", *arguments])
    return done.exit_code, done.output, done.exception


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--once"], "say where Prometheus is: --prometheus-url"),
        (["--once", "--prometheus-url", "prometheus"], "must be like http://prometheus:9090"),
        (["--act", "--prometheus-url", "http://p:1"], "--act needs --config"),
        (["--config", "/nowhere.yaml"], "cannot read the configuration file /nowhere.yaml"),
        (["simulate", "--workload", "dirunal"], "must be one of diurnal, spike, outage, rolling"),
    ],
)
def test_a_wrong_call_is_one_sentence(arguments: list[str], message: str) -> None:
    _, _, error = run(*arguments)
    assert isinstance(error, ConfigError)  # which main() prints, with exit status 2
    assert message in str(error)


def test_the_loop_holds_and_serves_its_health(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "autoscaler.yaml"
    file.write_text(
        "prometheus: {url: 'http://127.0.0.1:9', retries: 0}\n"
        "interval_seconds: 0.2\n"
        f"listen_host: 127.0.0.1\nlisten_port: {port}\n"
        f"audit_file: {tmp_path / 'audit.jsonl'}\n"
        "models: [{model: smol, target: prod/StatefulSet/smol}]\n"
    )
    command = [sys.executable, "-m", "growpage", "autoscale", "--config", str(file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as loop:
        try:
            _wait_for(f"http://127.0.0.1:{port}/readyz", loop)
            assert urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).status == 200
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"http://127.0.0.1:{port}/", timeout=5)
            metrics = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
            assert "growpage_desired_replicas{" not in metrics
            assert 'model_name="smol",namespace="prod",state="ABSENT",target="smol"} 1.0' in metrics
            assert "growpage_autoscaler_query_errors_total" in metrics
            with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
                from growpage.fleet.telemetry import FleetMetrics, Health, TelemetryServer

                TelemetryServer("127.0.0.1", port, FleetMetrics(), Health(60))
        finally:
            loop.send_signal(signal.SIGTERM)
            output, errors = loop.communicate(timeout=20)
    assert loop.returncode == 0
    assert "prod/StatefulSet/smol smol: NO_ACTION ?, data ABSENT: hold" in output
    said = [json.loads(line) for line in errors.splitlines()]
    events = [each["event"] for each in said]
    assert events[0].startswith("replicas are what Prometheus scrapes: set `kubernetes: {}`")
    assert events[1:] == ["holding", "holding: Prometheus does not answer"]  # once, not each round
    audited = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert len(audited) >= 1
    assert json.loads(audited[0])["data"] == "ABSENT"


def _wait_for(url: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            urlopen(url, timeout=2)
            return
        except (URLError, OSError):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_recording_is_replayed(tmp_path: Path) -> None:
    """Ten quiet minutes and ten busy ones."""
    recording = tmp_path / "load.csv"
    recording.write_text("seconds,rate\n0,1\n600,6\n1200,6\n")
    status, output, _ = run(
        "simulate",
        *("--recorded", str(recording), "--out", str(tmp_path / "out"), "--cold-start", "60"),
    )
    assert status == 0
    assert "load: " in output
    result = json.loads((tmp_path / "out/simulation.json").read_text())
    assert (tmp_path / "out/simulation.png").read_bytes().startswith(b"\x89PNG")
    ours, hpa, simple = result["results"]
    assert [each["scaler"] for each in (ours, hpa, simple)] == ["growpage", "hpa", "simple"]
    for each in (ours, hpa, simple):
        assert each["scale_outs"] >= 1
        replicas = [moment["desired"] for moment in each["moments"]]
        assert replicas[0] == 1
        assert max(replicas[:40]) <= max(replicas[40:])
        limits = result["policy"]
        assert all(limits["min_replicas"] <= n <= limits["max_replicas"] for n in replicas)
    # Twice the same, to the last digit.
    run("simulate", "--recorded", str(recording), "--out", str(tmp_path / "b"), "--cold-start=60")
    assert json.loads((tmp_path / "b/simulation.json").read_text()) == result


def test_prometheus_own_json_is_a_recording(tmp_path: Path) -> None:
    file = tmp_path / "rate.json"
    values = [[1000, "1"], [1060, "2.5"]]
    body = {
        "status": "success",
        "data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}] * 2},
    }
    file.write_text(json.dumps(body))
    load = workloads.recorded(file)
    assert (load.seconds, load.rate(0), load.rate(59), load.rate(60)) == (60, 2, 2, 5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds 0 points"),
        ("0,1\n", "holds 1 points"),
        ("0,1\n60,nan\n", "negative or no number"),
        ("0;1\n60;2\n", "is no recording"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "load.csv"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        workloads.recorded(file)

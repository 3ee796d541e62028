"""``growpage doctor`` over HTTP: what it finds, and with which status it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from growpage.cli.app import main
from growpage.diagnosis.checks import ENGINE_CHECKS, EVIDENCE_CHECKS
from tests.diagnosis.loopback import prometheus, vllm_like, wait_for
from tests.prometheus_server import free_port

HTML = ("200 OK", "text/html", b"<html><body>Welcome to nginx!</body></html>")


class Doctor:
    """Runs the command as its entry point does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["growpage", "doctor", *arguments])
        self._monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as end:
            main()
        printed = self._capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    def report(self, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
        status, out, err = self(*arguments, "--json")
        assert out, err
        report: dict[str, Any] = json.loads(out)
        assert report["ok"] is (status != 1)
        return status, {finding["name"]: finding for finding in report["findings"]}

    def refusal(self, *arguments: str) -> tuple[int, str]:
        status, out, err = self(*arguments)
        assert not out
        (line,) = (line for line in err.splitlines() if line.startswith("growpage: "))
        return status, line


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(monkeypatch, capsys)


def test_a_healthy_server(doctor: Doctor) -> None:
    with vllm_like(api_key="secret") as address:
        # People copy the address from a client's base_url, too.
        key = ("--api-key", "secret")
        status, findings = doctor.report("--url", f"{address}/v1/", *key, "--watch", "1")
    assert status == 0
    assert set(findings) == {*EVIDENCE_CHECKS, *ENGINE_CHECKS}
    assert findings["refused growth"]["detail"] == "none; 20 steps granted"
    assert findings["recompute share"]["detail"] == "0 of 500 tokens (0.0%) were computed again"
    assert findings["engines"]["detail"] == "1 of tiny: engine 0"
    assert "vLLM 0.32.0" in findings["versions"]["detail"]


def test_a_failure_is_printed_first_with_its_advice(doctor: Doctor) -> None:
    between = {'growpage_compressions{reason="boundary",mode="enforce"}': 5.0}
    with vllm_like(between=between) as address:
        status, out, _ = doctor("--url", address, "--watch", "1")
    assert status == 1
    lines = out.splitlines()
    assert lines[0] == f"growpage doctor: {address}, watched for 1 s"
    assert lines[1].startswith("failure  worker")
    assert "--worker-cls" in out
    assert lines[-1].startswith("failure: 1, warning: 0, unknown: ")


def test_warnings_count_if_asked(doctor: Doctor, tmp_path: Path) -> None:
    config = tmp_path / "budget.yaml"
    config.write_text("policy: growpage\nmin_pages: 16\n")
    with vllm_like() as address:
        asked = ("--url", address, "--watch", "1", "--config", str(config))
        status, findings = doctor.report(*asked, "--strict")
    assert status == 4
    assert findings["settings and pool"]["status"] == "warning"
    assert "--max-num-seqs 5" in findings["settings and pool"]["remedy"]


@pytest.mark.parametrize("key", [(), ("--api-key", "wrong")])
def test_a_wrong_key(doctor: Doctor, key: tuple[str, ...]) -> None:
    with vllm_like(api_key="secret") as address:
        status, line = doctor.refusal("--url", address, *key)
    assert status == 2
    assert line == f"growpage: {address} refuses /v1/models (401); give its key with --api-key"


def test_a_server_that_is_not_there(doctor: Doctor) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    for option in ("--url", "--prometheus-url"):
        status, line = doctor.refusal(option, address)
        assert status == 3
        assert line.startswith(f"growpage: {address} cannot be reached: ")


def test_a_server_that_is_ill(doctor: Doctor) -> None:
    ill = ("503 Service Unavailable", "text/plain", b"")
    with vllm_like(pages={"/metrics": ill}) as address:
        status, line = doctor.refusal("--url", address)
    assert status == 3
    assert line == f"growpage: {address} answers 503 to /metrics"


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ({"/metrics": HTML}, "is not in Prometheus's format; is it a vLLM server?"),
        ({"/metrics": ("200 OK", "text/plain", b"up 1\n")}, "exports no vllm:* metrics and has no"),
        ({"/metrics": ("404 Not Found", "text/plain", b"")}, "answers 404 to /metrics; is it a vL"),
    ],
)
def test_what_is_no_vllm_server(doctor: Doctor, pages: dict[str, Any], message: str) -> None:
    other = {"/version": HTML, "/v1/models": HTML}
    with vllm_like(pages={**other, **pages}) as address:
        status, line = doctor.refusal("--url", address)
    assert status == 2
    assert message in line


def test_what_is_no_prometheus(doctor: Doctor) -> None:
    with vllm_like() as address:
        status, line = doctor.refusal("--prometheus-url", address)
    assert status == 2
    assert "and not as Prometheus does; is it Prometheus?" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "localhost:8000"], "'localhost:8000' is no address"),
        (["--url", "http://host:port"], "'http://host:port' is no address"),
        (["--url", "http://a", "--prometheus-url", "http://b"], "cannot be combined"),
        (["--watch", "5"], "--watch needs --url"),
        (["--prometheus-url", "http://b", "--watch", "5"], "--watch needs --url"),
        (["--url", "http://a", "--since", "1h"], "--since needs --prometheus-url"),
        (["--model", "tiny"], "--model needs --prometheus-url"),
        (["--api-key", "k"], "--api-key needs --url or --prometheus-url"),
        (["--url", "http://a", "--api-key", "schlüssel"], "--api-key must be some characters"),
        (["--url", "http://a", "--api-key", ""], "--api-key must be some characters"),
        (["--prometheus-url", "http://b", "--since", "1x"], "--since is '1x', but must be a dur"),
        (["--prometheus-url", "http://b", "--since", "0s"], "--since is '0s', but must be a dur"),
        (["--url", "http://a", "--config", "none.yaml"], "cannot read the configuration file"),
    ],
)
def test_wrong_usage(doctor: Doctor, arguments: list[str], message: str) -> None:
    status, line = doctor.refusal(*arguments)
    assert status == 2
    assert message in line


def test_the_exit_statuses_are_in_the_help(doctor: Doctor) -> None:
    status, out, _ = doctor("--help")
    assert status == 0
    text = " ".join(out.split())
    assert "0 no failure, 1 a failure was found, 2 wrong usage" in text


def test_over_prometheus(doctor: Doctor, tmp_path: Path) -> None:
    between = {'growpage_growth_refused{reason="quota",mode="enforce"}': 20.0}
    dead = f"127.0.0.1:{free_port()}"
    with (
        vllm_like() as healthy,
        vllm_like(between=between, engine="1") as limited,
        prometheus(tmp_path, healthy, limited, f"http://{dead}") as address,
    ):
        wait_for(lambda: scraped(address) == 2)
        asked = ("--prometheus-url", address, "--since", "1m")
        status, findings = doctor.report(*asked, "--model", "tiny")
        unknown_model = doctor.refusal(*asked, "--model", "other")
    assert status == 1
    engines = findings.pop("engines")
    assert engines["detail"] == f"1 of 3 targets cannot be scraped: {dead}"
    assert "failure" not in {finding["status"] for finding in findings.values()}
    refused = findings["refused growth"]
    assert refused["status"] == "warning"
    assert refused["detail"].startswith(f"{limited.removeprefix('http://')} engine 1: ")
    assert "(50%) refused, by reason: quota" in refused["detail"]
    # Nothing has been compressed, so there is no such series, but there is its description.
    assert "0 compressions planned so far, 0 carried out" in findings["worker"]["detail"]
    assert findings["prefix caching"]["detail"].endswith("(2 of 2 engines: ok)")
    code, line = unknown_model
    assert code == 2
    assert "no series of the model 'other' in the last 1m; it has tiny" in line


def test_a_prometheus_that_scrapes_no_server(doctor: Doctor, tmp_path: Path) -> None:
    with prometheus(tmp_path) as address:
        status, line = doctor.refusal("--prometheus-url", address)
    assert status == 2
    assert line.endswith("has no vllm:* series in the last 1h; does it scrape the servers?")


def scraped(prometheus_url: str) -> int:
    """Engines that Prometheus has scraped for more than two seconds."""
    query = "count(count_over_time(vllm:generation_tokens_total[1m]) > 5)"
    answer = httpx2.get(f"{prometheus_url}/api/v1/query", params={"query": query})
    result = answer.json()["data"]["result"]
    return int(result[0]["value"][1]) if result else 0


def test_asking_servers_needs_neither_torch_nor_vllm() -> None:
    code = (
        "import growpage.cli.app, growpage.diagnosis.server, growpage.diagnosis.prometheus, sys; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'vllm')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

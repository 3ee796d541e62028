"""Prometheus and Alertmanager on loopback, with the project's files in fast motion.

Rules wait for minutes and look back for hours. Here every duration in them is divided by the same
number, in the expressions as in ``for``, so that the rules that run are the project's own but for
their pace; promtool's unit tests run them at theirs. Of the two programs' example configurations
only addresses and intervals are changed.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.monitoring.queries import RULES
from tests.prometheus_server import PROGRAMS, free_port

PROMETHEUS_EXAMPLE = RULES.with_name("prometheus.yaml")
ALERTMANAGER_EXAMPLE = RULES.with_name("alertmanager.yaml")

FASTER = 200
"""What durations are divided by: ten minutes are three seconds."""
SCRAPE_EVERY = "400ms"

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


@dataclass
class Notices:
    """What Alertmanager has told its receivers."""

    received: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The receiver, and one alert; oldest first."""

    def fired(self) -> set[tuple[str, str]]:
        """Receiver and name of every alert that has ever fired."""
        return {
            (receiver, alert["labels"]["alertname"])
            for receiver, alert in list(self.received)
            if alert["status"] == "firing"
        }

    def firing(self) -> set[tuple[str, str]]:
        """Receiver and name of the alerts that have fired and are not resolved."""
        last = {
            (receiver, json.dumps(alert["labels"], sort_keys=True)): alert
            for receiver, alert in list(self.received)
        }
        return {
            (receiver, alert["labels"]["alertname"])
            for (receiver, _), alert in last.items()
            if alert["status"] == "firing"
        }


@dataclass(frozen=True)
class Stack:
    """Both programs, running."""

    prometheus: httpx.Client
    """One for all: a client takes longer to make than a query takes."""
    notices: Notices

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that a query returns now."""
        answer = self.prometheus.get("/api/v1/query", params={"query": expression})
        assert answer.status_code == 200, answer.text
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health and last error."""
        groups = self.prometheus.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def running(
    folder: Path, targets: Sequence[str], receivers: dict[str, str] | None = None
) -> Iterator[Stack]:
    """Scrape ``targets`` as the job of the example, until the block is left.

    Args:
        folder: takes configurations, data and logs.
        targets: ``host:port`` of the servers.
        receivers: addresses of Alertmanager's receivers by name; the others report to
            :attr:`Stack.notices`.
    """
    with ExitStack() as stack:
        notices = Notices()
        webhook = stack.enter_context(_webhook(notices))
        alertmanager, prometheus = (f"127.0.0.1:{free_port()}" for _ in range(2))
        _write(folder / "rules.yaml", fast_rules())
        _write(folder / "alertmanager.yaml", _alertmanager(webhook, receivers or {}))
        _write(folder / "prometheus.yaml", _prometheus(alertmanager, targets))
        arguments = {
            "prometheus-alertmanager": (
                f"--config.file={folder / 'alertmanager.yaml'}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address={alertmanager}",
                "--cluster.listen-address=",
            ),
            "prometheus": (
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--web.listen-address={prometheus}",
            ),
        }
        for program, options in arguments.items():
            stack.enter_context(program_running(folder, program, options))
        addresses = (alertmanager, prometheus)
        wait_until(lambda: all(map(_ready, addresses)), lambda: f"see the logs in {folder}")
        client = httpx.Client(base_url=f"http://{prometheus}", timeout=30)
        yield Stack(stack.enter_context(client), notices)


@contextmanager
def program_running(folder: Path, program: str, options: Sequence[str]) -> Iterator[None]:
    """One of the programs, until the block is left; its output is in ``folder``."""
    path = relocated(PROGRAMS / program, folder)
    log = folder / f"{program}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [path, *options], stdout=sink, stderr=subprocess.STDOUT, cwd=PROGRAMS.parent
        )
    try:
        yield
        assert process.poll() is None, f"{program} has ended: {log.read_text()[-2000:]}"
    finally:
        process.terminate()
        process.wait(20)


def relocated(program: Path, folder: Path) -> Path:
    """A copy of a program that finds its data where Debian's package was unpacked.

    Debian's Alertmanager reads its templates from a path that is compiled in. The copy has a path
    of the same length instead, relative to the folder that holds ``bin`` and ``share``.
    """
    assert program.exists(), f"{program} is missing; `make test` fetches it"
    compiled_in = b"/usr/share/prometheus/alertmanager"
    relative = b"./share////prometheus/alertmanager"
    assert len(compiled_in) == len(relative)
    code = program.read_bytes()
    if compiled_in not in code:
        return program
    copy = folder / program.name
    copy.write_bytes(code.replace(compiled_in, relative))
    copy.chmod(0o755)
    return copy


def wait_until(
    condition: Callable[[], bool], why: Callable[[], str], limit_s: float = 30, every_s: float = 0.1
) -> None:
    """Wait, or fail with what is still wrong."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"after {limit_s:g} seconds: {why()}"
        time.sleep(every_s)


# ---- configurations --------------------------------------------------------------------------


def faster(duration: str) -> str:
    """``30m`` at the pace of the tests, in Prometheus's notation.

    Raises:
        ValueError: it is no duration with one unit.
    """
    parts = re.fullmatch(r"(\d+)(ms|s|m|h)", duration)
    if parts is None:
        raise ValueError(f"{duration!r} is no duration such as 30m")
    return f"{max(1, round(int(parts[1]) * _UNITS_MS[parts[2]] / FASTER))}ms"


def fast_rules() -> dict[str, Any]:
    """The project's rules with every duration divided by :data:`FASTER`."""
    content: dict[str, Any] = yaml.safe_load(RULES.read_text(encoding="utf-8"))

    def quicken(match: re.Match[str]) -> str:
        return f"[{':'.join(faster(part) for part in match[1].split(':'))}]"

    for group in content["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[([\dmsh:]+)\]", quicken, rule["expr"])
            if "for" in rule:
                rule["for"] = faster(rule["for"])
    return content


def _prometheus(alertmanager: str, targets: Sequence[str]) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(PROMETHEUS_EXAMPLE.read_text(encoding="utf-8"))
    content["global"] = dict.fromkeys(
        ("scrape_interval", "scrape_timeout", "evaluation_interval"), SCRAPE_EVERY
    )
    (managers,) = content["alerting"]["alertmanagers"]
    managers["static_configs"] = [{"targets": [alertmanager]}]
    (job,) = content["scrape_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    return content


def _alertmanager(webhook: str, receivers: dict[str, str]) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(ALERTMANAGER_EXAMPLE.read_text(encoding="utf-8"))
    for route in (content["route"], *content["route"]["routes"]):
        route.update(group_wait="100ms", group_interval="500ms", repeat_interval="1h")
    for receiver in content["receivers"]:
        (hook,) = receiver["webhook_configs"]
        hook["url"] = receivers.get(receiver["name"], f"{webhook}/{receiver['name']}")
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def _ready(address: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://{address}/-/ready", timeout=5).status_code == 200
    return False


@contextmanager
def _webhook(notices: Notices) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            receiver = self.path.strip("/")
            notices.received.extend((receiver, alert) for alert in content["alerts"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

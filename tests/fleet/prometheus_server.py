"""A real Prometheus on loopback, scraping the targets that a test names."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import yaml

BINARY = Path(sys.prefix) / "monitoring/usr/bin/prometheus"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PrometheusServer:
    """Scrapes ``host:port`` targets; inside a ``with`` block it runs, and it can be killed.

    A new start on the same folder finds the old data, as a restarted pod does with its volume.
    """

    def __init__(
        self,
        folder: Path,
        targets: Sequence[str],
        *,
        interval: str = "1s",
        labels: dict[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._targets = list(targets)
        self._labels = labels or {}
        self._interval = interval
        self._flags = list(flags)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> PrometheusServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def scrape(self, targets: Sequence[str]) -> None:
        """Scrape these from now on."""
        self._targets = list(targets)
        self._configure()
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def start(self, timeout: float = 20.0) -> None:
        self._configure()
        log = (self._folder / "prometheus.log").open("ab")
        self._process = subprocess.Popen(
            [
                str(BINARY),
                f"--config.file={self._folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                *self._flags,
            ],
            stdout=log,
            stderr=log,
        )
        log.close()
        deadline = time.monotonic() + timeout
        while not self._ready():
            said = (self._folder / "prometheus.log").read_text()[-2000:]
            assert self._process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _configure(self) -> None:
        config: dict[str, Any] = {
            "global": {"scrape_interval": self._interval, "scrape_timeout": self._interval},
            "scrape_configs": [
                {
                    "job_name": "vllm",
                    "static_configs": [{"targets": self._targets, "labels": self._labels}],
                }
            ],
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    def _ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

"""A real Prometheus on loopback, scraping the targets that a test names."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

PROGRAMS = Path(sys.prefix) / "monitoring/usr/bin"
"""Where ``make test`` unpacks Debian's packages."""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
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
        targets: Sequence[str] | Mapping[str, Mapping[str, str]],
        *,
        interval: str = "1s",
        flags: Sequence[str] = (),
        more: dict[str, Any] | None = None,
    ) -> None:
        """Targets may have labels; more of the configuration may be given in ``more``."""
        self._folder = folder
        self._targets = targets
        self._interval = interval
        self._flags = list(flags)
        self._more = more or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> PrometheusServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def scrape(self, targets: Sequence[str] | Mapping[str, Mapping[str, str]]) -> None:
        """Scrape these from now on."""
        self._targets = targets
        self._configure()
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def start(self, timeout: float = 20.0) -> None:
        self._configure()
        log = self._folder / "prometheus.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    str(PROGRAMS / "prometheus"),
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    *self._flags,
                ],
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + timeout
        while "Server is ready to receive web requests" not in (said := log.read_text()):
            assert self._process.poll() is None, said[-2000:]
            assert time.monotonic() < deadline, said[-2000:]
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _labelled(self) -> Mapping[str, Mapping[str, str]]:
        if isinstance(self._targets, Mapping):
            return self._targets
        return {address: {} for address in self._targets}

    def _configure(self) -> None:
        config: dict[str, Any] = {
            **self._more,
            "global": {"scrape_interval": self._interval, "scrape_timeout": self._interval},
            "scrape_configs": [
                {
                    "job_name": "vllm",
                    "static_configs": [
                        {"targets": [address], "labels": dict(labels)}
                        for address, labels in self._labelled().items()
                    ],
                }
            ],
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.fleet.exporter import Exporter
from tests.prometheus_server import PrometheusServer


@dataclass
class ScrapedFleet:
    """Two pods of the Deployment llm/chat and one that is gone, scraped by a Prometheus."""

    a: Exporter
    b: Exporter
    ghost: Exporter
    prometheus: PrometheusServer

    def set(self, **load: float) -> None:
        """The load of each of the two pods."""
        for pod in (self.a, self.b):
            pod.set(**load)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def scraped_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScrapedFleet]:
    """One of the pods is read in OpenMetrics, in which its library writes `vllm_` for `vllm:`."""
    with Exporter() as a, Exporter(openmetrics=True) as b, Exporter() as ghost:
        ghost.set(usage=1.0, running=99, waiting=99)
        targets = {
            pod.address: {"namespace": "llm", "pod": name}
            for name, pod in (("chat-a", a), ("chat-b", b), ("gone", ghost))
        }
        folder = tmp_path_factory.mktemp("prometheus")
        with PrometheusServer(folder, targets) as prometheus:
            yield ScrapedFleet(a, b, ghost, prometheus)

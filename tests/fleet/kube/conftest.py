from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from growpage.fleet.kube.api import connect
from growpage.fleet.targets import Target
from tests.fleet.kube.apiserver import ApiServer, kubeconfig, served

CHAT = Target("llm", "Deployment", "chat")


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with served(ApiServer()) as server:
        yield server


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> ApiClient:
    return connect(kubeconfig(tmp_path, server.address), timeout_seconds=2)

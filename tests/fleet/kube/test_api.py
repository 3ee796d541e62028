"""Finding the cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from growpage.fleet.kube.api import ConnectError, connect
from growpage.fleet.kube.scale import read_scale
from tests.fleet.kube.apiserver import ApiServer, kubeconfig
from tests.fleet.kube.conftest import CHAT


def test_the_token_of_the_kubeconfig_is_sent(server: ApiServer, api: ApiClient) -> None:
    server.workload()
    read_scale(api, CHAT)
    (call,) = server.calls("GET", "/")
    assert call.headers["Authorization"] == "Bearer secret"


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConnectError, match=rf"^cannot use the kubeconfig {re.escape(str(tmp_path))}"
    ):
        connect(tmp_path / "nothing")


def test_a_missing_context_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="production"):
        connect(kubeconfig(tmp_path, "http://127.0.0.1:9"), "production")


def test_neither_a_pod_nor_a_kubeconfig_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "nothing")
    )
    with pytest.raises(ConnectError) as error:
        connect()
    assert "nor is this a pod: Service host/port is not set" in str(error.value)
    assert "\n" not in str(error.value)

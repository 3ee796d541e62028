"""The manifests of docs/autoscaler-kubernetes.md."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

from growpage.fleet.keda.scaler import TARGET_KEY
from tests.fleet.kube.rbac import DOCUMENT, documented_rules

BLOCKS = [
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.S)
]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (each for each in BLOCKS if isinstance(each, dict) and each.get("kind") == kind)
    return found


@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])
def test_kubernetes_takes_the_hpa_and_the_rules(version: str) -> None:
    kubernetes_validate.validate(of_kind("HorizontalPodAutoscaler"), version, strict=True)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "autoscaler"},
        "rules": documented_rules(),
    }
    kubernetes_validate.validate(role, version, strict=True)


def test_what_keeps_keda_from_taking_no_data_for_zero_is_set() -> None:
    spec = of_kind("ScaledObject")["spec"]
    (trigger,) = spec["triggers"]
    assert spec["minReplicaCount"] >= 1
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert trigger["metricType"] == "AverageValue"
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert trigger["metadata"]["threshold"] == "1"
    query = promql_parser.parse(trigger["metadata"]["query"])
    assert isinstance(query, promql_parser.AggregateExpr)  # one series, whatever there is
    assert "growpage_desired_replicas" in trigger["metadata"]["query"]


def test_the_trigger_of_the_external_scaler_names_the_target_as_the_code_reads_it() -> None:
    (block,) = (each for each in BLOCKS if isinstance(each, dict) and each.keys() == {"triggers"})
    (trigger,) = block["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("external", "AverageValue")
    assert trigger["metadata"][TARGET_KEY] == "chat"

"""The autoscaler takes the configuration that the chart writes, and may do what it must."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import Run
from tests.deploy.manifests import Manifest, documents, of_kind
from tools.render_manifests import DOCUMENTATION, ROOT, documented_values, render

config = pytest.importorskip("growpage.fleet.config")

PERMISSIONS = ROOT / "docs/autoscaler-kubernetes.md"
COMBINATIONS = [
    name
    for name, values in documented_values(DOCUMENTATION.read_text(encoding="utf-8")).items()
    if values.get("autoscaler", {}).get("enabled")
]


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_it_takes_the_configuration(
    combination: str,
    values: dict[str, dict[str, Any]],
    rendered: dict[str, list[Manifest]],
    tmp_path: Path,
) -> None:
    (content,) = (
        each["data"]["autoscaler.yaml"]
        for each in of_kind(rendered[combination], "ConfigMap")
        if "autoscaler.yaml" in each["data"]
    )
    given = values[combination]["autoscaler"]
    for key, file in given["prometheus"].items():
        if key.endswith("Key"):
            (tmp_path / file).touch()
    path = tmp_path / "autoscaler.yaml"
    path.write_text(content.replace("/etc/growpage/prometheus", str(tmp_path)), encoding="utf-8")
    settings = config.AutoscalerSettings.from_file(path)
    assert settings.prometheus.url == given["prometheus"]["url"]
    assert settings.kubernetes.act == given.get("act", False)
    assert settings.listen_port == 9100
    wanted = given.get("targets") or [{"maxReplicas": given["maxReplicas"]}]
    assert [model.policy.max_replicas for model in settings.models] == [
        each["maxReplicas"] for each in wanted
    ]


def granted(manifests: list[Manifest]) -> set[tuple[str, str, str]]:
    return permissions([rule for role in of_kind(manifests, "Role") for rule in role["rules"]])


def permissions(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if resource != "statefulsets/scale"
        for verb in rule["verbs"]
    }


def documented(*parts: str) -> set[tuple[str, str, str]]:
    """What the autoscaler's own page says that it needs."""
    text = PERMISSIONS.read_text(encoding="utf-8")
    blocks = dict(re.findall(r"<!-- rbac: (\w+) -->\n```yaml\n(.*?)```", text, re.DOTALL))
    return set().union(*(permissions(yaml.safe_load(blocks[part])) for part in parts))


def test_it_may_do_what_it_must_and_no_more(rendered: dict[str, list[Manifest]]) -> None:
    assert granted(rendered["keda"]) == documented("watch")
    acting = documented("watch", "events", "act", "lease")
    assert granted(rendered["autoscaler-acts"]) == acting


def test_marking_pods_takes_a_permission_more(
    values: dict[str, dict[str, Any]], with_helm: Run
) -> None:
    acting = values["autoscaler-acts"]
    marking = {**acting, "autoscaler": {**acting["autoscaler"], "choosePods": True}}
    more = granted(documents(with_helm(render, marking)))
    assert more == documented("watch", "events", "act", "lease", "drain")

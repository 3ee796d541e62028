"""What the chart makes of every combination of values that docs/kubernetes.md shows."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.conftest import Run
from tests.deploy.helm import generated, lint
from tests.deploy.manifests import (
    SCHEMAS,
    Manifest,
    documents,
    identity,
    name,
    of_kind,
    pod_spec,
    selected,
    selectors,
    violations_of_restricted,
)
from tests.prometheus_server import PROGRAMS
from tools.render_manifests import (
    DOCUMENTATION,
    MANIFESTS,
    ROOT,
    RULES,
    RULES_IN_CHART,
    documented_values,
)

MARKDOWN = DOCUMENTATION.read_text(encoding="utf-8")
NAMES = list(documented_values(MARKDOWN))
VERSIONS = ["1.30", "1.34", "1.37"]
CUSTOM = {"ScaledObject", "PodMonitor", "PrometheusRule"}
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

combinations = pytest.mark.parametrize("combination", NAMES)


def test_every_yaml_block_of_the_page_is_a_combination() -> None:
    assert len(NAMES) >= 10
    assert MARKDOWN.count("```yaml") == len(NAMES)


def test_the_checked_in_files_are_what_the_chart_renders(with_helm: Run) -> None:
    files = with_helm(generated)
    stale = [
        str(path.relative_to(ROOT))
        for path, content in files.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != content
    ]
    assert not stale, "not current: run python tools/render_manifests.py"
    assert {path.name for path in MANIFESTS.iterdir()} == set(NAMES)


def test_the_charts_rules_are_the_rules() -> None:
    assert RULES_IN_CHART.read_bytes() == RULES.read_bytes()


@combinations
def test_helm_lint_has_nothing_to_say(
    combination: str, values: dict[str, dict[str, Any]], with_helm: Run
) -> None:
    assert with_helm(lint, values[combination]) == []


@pytest.fixture(scope="module")
def distinct(rendered: dict[str, list[Manifest]]) -> list[Manifest]:
    """Each manifest once: many combinations share some, and validating takes time."""
    texts = {json.dumps(each, sort_keys=True) for all_ in rendered.values() for each in all_}
    return [json.loads(text) for text in sorted(texts)]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_them(version: str, distinct: list[Manifest]) -> None:
    for manifest in distinct:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("kind", sorted(CUSTOM))
def test_the_operators_take_theirs(kind: str, distinct: list[Manifest]) -> None:
    schema = json.loads((SCHEMAS / f"{kind.lower()}.json").read_text(encoding="utf-8"))
    found = of_kind(distinct, kind)
    assert found
    for manifest in found:
        jsonschema.validate(manifest, schema)


@combinations
def test_names_are_there_valid_and_unique(
    combination: str, rendered: dict[str, list[Manifest]]
) -> None:
    # kubernetes-validate does not miss a name that is not there.
    manifests = rendered[combination]
    identities = [identity(each) for each in manifests]
    assert len(set(identities)) == len(identities)
    for manifest in manifests:
        assert DNS_LABEL.fullmatch(name(manifest))


@combinations
def test_selectors_match_the_pods_that_they_mean(
    combination: str, rendered: dict[str, list[Manifest]]
) -> None:
    for manifest in rendered[combination]:
        for selector in selectors(manifest):
            assert selected(rendered[combination], selector) == [name(manifest)]


@combinations
def test_what_is_referred_to_is_there(
    combination: str, rendered: dict[str, list[Manifest]]
) -> None:
    manifests = rendered[combination]
    there = {(each["kind"], name(each)) for each in manifests}
    for deployment in of_kind(manifests, "Deployment"):
        pod = pod_spec(deployment)
        assert ("ServiceAccount", pod["serviceAccountName"]) in there
        mounted = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        for volume in pod["volumes"]:
            if config := volume.get("configMap"):
                assert ("ConfigMap", config["name"]) in there
            if claim := volume.get("persistentVolumeClaim"):
                assert ("PersistentVolumeClaim", claim["claimName"]) in there
    for scaler in of_kind(manifests, "ScaledObject") + of_kind(
        manifests, "HorizontalPodAutoscaler"
    ):
        target = scaler["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) in there
    for binding in of_kind(manifests, "RoleBinding"):
        roles = {(each["metadata"]["namespace"], name(each)) for each in of_kind(manifests, "Role")}
        assert (binding["metadata"]["namespace"], binding["roleRef"]["name"]) in roles
        for subject in binding["subjects"]:
            assert (subject["kind"], subject["name"]) in there


@combinations
def test_ports_are_those_of_the_pods(combination: str, rendered: dict[str, list[Manifest]]) -> None:
    manifests = rendered[combination]
    ports = {
        name(each): {port["name"] for port in pod_spec(each)["containers"][0]["ports"]}
        for each in of_kind(manifests, "Deployment")
    }
    for service in of_kind(manifests, "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[name(service)]
    for monitor in of_kind(manifests, "PodMonitor"):
        endpoints = monitor["spec"]["podMetricsEndpoints"]
        assert {endpoint["port"] for endpoint in endpoints} <= ports[name(monitor)]
    for policy in of_kind(manifests, "NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            assert {port["port"] for port in rule["ports"]} <= ports[name(policy)]
    for deployment in of_kind(manifests, "Deployment"):
        for container in pod_spec(deployment)["containers"]:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in container:
                    assert container[probe]["httpGet"]["port"] in ports[name(deployment)]


@combinations
def test_pods_pass_the_restricted_standard(
    combination: str, rendered: dict[str, list[Manifest]]
) -> None:
    for deployment in of_kind(rendered[combination], "Deployment"):
        pod = pod_spec(deployment)
        assert violations_of_restricted(pod) == []
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert "limits" in container["resources"]
            assert container["readinessProbe"] and container["livenessProbe"]


@combinations
def test_a_server_may_finish_its_requests(
    combination: str, rendered: dict[str, list[Manifest]]
) -> None:
    for deployment in of_kind(rendered[combination], "Deployment"):
        pod = pod_spec(deployment)
        container = pod["containers"][0]
        if container["name"] != "server":
            continue
        flag = next(each for each in container["args"] if each.startswith("--shutdown-timeout="))
        shutdown = int(flag.partition("=")[2])
        leaving = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert shutdown > 0
        assert pod["terminationGracePeriodSeconds"] >= leaving + shutdown + 10
        startup = container["startupProbe"]
        loading = startup["periodSeconds"] * startup["failureThreshold"]
        assert deployment["spec"]["progressDeadlineSeconds"] > loading


@combinations
def test_nobody_but_its_scaler_sets_the_number_of_servers(
    combination: str, rendered: dict[str, list[Manifest]]
) -> None:
    for deployment in of_kind(rendered[combination], "Deployment"):
        assert ("replicas" in deployment["spec"]) == name(deployment).endswith("-autoscaler")


def test_an_outage_never_shrinks_the_fleet(rendered: dict[str, list[Manifest]]) -> None:
    found = [each for all_ in rendered.values() for each in of_kind(all_, "ScaledObject")]
    assert {each["spec"]["triggers"][0]["type"] for each in found} == {"prometheus", "external"}
    for scaled in found:
        spec = scaled["spec"]
        assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
        assert spec["minReplicaCount"] >= 1
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 300
        for trigger in spec["triggers"]:
            assert trigger["metricType"] == "AverageValue"
            if trigger["type"] == "prometheus":
                assert trigger["metadata"]["ignoreNullValues"] == "false"
                assert trigger["metadata"]["threshold"] == "1"


def test_the_autoscalers_labels_survive_the_scrape(rendered: dict[str, list[Manifest]]) -> None:
    monitors = [
        each
        for all_ in rendered.values()
        for each in of_kind(all_, "PodMonitor")
        if name(each).endswith("-autoscaler")
    ]
    assert monitors
    for monitor in monitors:
        assert all(each["honorLabels"] for each in monitor["spec"]["podMetricsEndpoints"])


def test_vllms_names_keep_their_colon(rendered: dict[str, list[Manifest]]) -> None:
    (monitor,) = of_kind(rendered["monitoring"], "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (relabel,) = endpoint["metricRelabelings"]
    assert relabel["sourceLabels"] == [relabel["targetLabel"]] == ["__name__"]
    renamed = re.sub(
        f"^(?:{relabel['regex']})$",
        relabel["replacement"].replace("$1", r"\1"),
        "vllm_kv_cache_usage_perc",
    )
    assert renamed == "vllm:kv_cache_usage_perc"


def test_only_an_acting_autoscaler_may_write(rendered: dict[str, list[Manifest]]) -> None:
    may_write = set()
    for combination, manifests in rendered.items():
        for role in of_kind(manifests, "Role"):
            for rule in role["rules"]:
                assert "*" not in rule["resources"] + rule["verbs"] + rule["apiGroups"]
                if not set(rule["verbs"]) <= {"get", "list"}:
                    may_write.add(combination)
                if rule["resources"] == ["deployments/scale"]:
                    assert rule["resourceNames"]
    assert may_write == {"autoscaler-acts"}


def test_each_namespace_of_a_target_has_its_role(rendered: dict[str, list[Manifest]]) -> None:
    roles = of_kind(rendered["autoscaler-only"], "Role")
    scales = {
        (role["metadata"]["namespace"], rule["resources"][0], *rule["resourceNames"])
        for role in roles
        for rule in role["rules"]
        if rule["resources"][0].endswith("/scale")
    }
    assert scales == {("chat", "deployments/scale", "chat"), ("code", "statefulsets/scale", "code")}


def test_promtool_takes_the_rules(rendered: dict[str, list[Manifest]], tmp_path: Path) -> None:
    (rule,) = of_kind(rendered["monitoring"], "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    promtool = PROGRAMS / "promtool"
    done = subprocess.run(
        [promtool, "check", "rules", file], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_kustomization_builds(
    kustomize: list[str], rendered: dict[str, list[Manifest]]
) -> None:
    done = subprocess.run(
        [*kustomize, str(ROOT / "deploy/kustomize/overlays/production")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = documents(done.stdout)
    (namespace,) = of_kind(built, "Namespace")
    rest = [each for each in built if each is not namespace]
    assert sorted(map(identity, rest)) == sorted(map(identity, rendered["keda"]))
    for manifest in built:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
    images = {pod_spec(each)["containers"][0]["image"] for each in of_kind(built, "Deployment")}
    assert all("/team/" in image for image in images)
    (server,) = (
        pod_spec(each) for each in of_kind(built, "Deployment") if name(each) == "growpage-server"
    )
    assert server["priorityClassName"] == "serving"
    assert violations_of_restricted(server) == []

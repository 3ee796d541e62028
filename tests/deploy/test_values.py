"""What the chart takes, what it refuses and how it says so."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from growpage._version import __version__
from growpage.budget.config import BudgetConfig
from growpage.budget.rollout import Rollout
from growpage.cli.flags import budget_parser, split_budget
from growpage.cli.serve import add_operations
from tests.deploy.conftest import Run
from tests.deploy.helm import refusal
from tests.deploy.manifests import Manifest, documents, name, of_kind, pod_spec
from tools.render_manifests import CHART, render

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

IMAGE = {"repository": "registry.example.com/growpage/server"}
SERVER = {"server": {"image": IMAGE}}
AUTOSCALER = {
    "autoscaler": {
        "enabled": True,
        "image": {"repository": "registry.example.com/growpage/autoscaler"},
        "prometheus": {"url": "http://prometheus:9090"},
    }
}
BOTH = {**SERVER, **AUTOSCALER}


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(base))
    for key, value in change.items():
        inner = result.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            result[key] = merged(inner, value)
        else:
            result[key] = value
    return result


# -- refused by the schema -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"serverr": {}}, "additional properties 'serverr' not allowed"),
        ({"server": {"replica": 2}}, "at '/server': additional properties 'replica' not allowed"),
        ({"server": {"replicas": -1}}, "at '/server/replicas': minimum: got -1, want 0"),
        ({"server": {"replicas": "2"}}, "at '/server/replicas': got string, want"),
        ({"server": {"shutdownTimeoutSeconds": 0}}, "'/server/shutdownTimeoutSeconds': minimum"),
        ({"server": {"preStopSeconds": 1.5}}, "'/server/preStopSeconds': got number, want integer"),
        ({"server": {"image": {"repository": "A b"}}}, "'/server/image/repository': 'A b' does no"),
        ({"server": {"image": {"digest": "sha256:12"}}}, "'/server/image/digest': 'sha256:12' d"),
        ({"server": {"image": {"pullPolicy": "always"}}}, "'/server/image/pullPolicy': value must"),
        ({"server": {"growpage": {"policy": "best"}}}, "'/server/growpage/policy': value must be"),
        ({"server": {"growpage": {"minPages": 4}}}, "additional properties 'minPages' not allowed"),
        ({"server": {"growpage": {"tau": "0"}}}, "'/server/growpage/tau': got string, want number"),
        ({"server": {"growpage": {"local_quota": 1}}}, "'/server/growpage/local_quota': exclusive"),
        (
            {"server": {"rollout": {"mode": "watch"}}},
            "'/server/rollout/mode': value must be one of",
        ),
        (
            {"server": {"rollout": {"quotas": {"a": 0}}}},
            "'/server/rollout/quotas/a': minimum: got 0",
        ),
        ({"server": {"extraArgs": "--dtype=half"}}, "'/server/extraArgs': got string, want array"),
        ({"server": {"startupTimeoutSeconds": 5}}, "'/server/startupTimeoutSeconds': minimum: go"),
        ({"server": {"strategy": {"type": "BlueGreen"}}}, "'/server/strategy/type': value must be"),
        ({"server": {"sharedMemory": {"sizeLimit": "8 GB"}}}, "'/server/sharedMemory/sizeLimit'"),
        ({"server": {"service": {"port": 70000}}}, "'/server/service/port': maximum: got 70,000"),
        (
            {"server": {"probes": {"liveness": {"path": "/"}}}},
            "'/server/probes/liveness': addition",
        ),
        ({"server": {"extraVolumes": [{"emptyDir": {}}]}}, "missing property 'name'"),
        ({"autoscaler": {"replicas": 0}}, "'/autoscaler/replicas': minimum: got 0, want 1"),
        ({"autoscaler": {"act": "yes"}}, "'/autoscaler/act': got string, want boolean"),
        (
            {"autoscaler": {"prometheus": {"url": "prometheus:9090"}}},
            "'/autoscaler/prometheus/url'",
        ),
        (
            {"autoscaler": {"targets": [{"name": "chat"}]}},
            "missing properties 'model', 'maxReplica",
        ),
        ({"scaledObject": {"minReplicas": 0}}, "'/scaledObject/minReplicas': minimum: got 0, want"),
        ({"scaledObject": {"trigger": "cpu"}}, "'/scaledObject/trigger': value must be one of"),
        ({"scaledObject": {"fallback": {"behavior": "static"}}}, "'/scaledObject/fallback': addit"),
        ({"hpa": {"minReplicas": 0}}, "'/hpa/minReplicas': minimum: got 0, want 1"),
        ({"hpa": {"metrics": [{}]}}, "'/hpa/metrics/0': missing property 'type'"),
        ({"podMonitor": {"interval": "15"}}, "'/podMonitor/interval': '15' does not match pattern"),
        ({"podMonitor": {"serverPaths": []}}, "'/podMonitor/serverPaths': minItems: got 0, want 1"),
        ({"podDisruptionBudget": {"maxUnavailable": "one"}}, "'/podDisruptionBudget/maxUnavailabl"),
        ({"networkPolicy": {"clients": [{}]}}, "'/networkPolicy/clients/0': minProperties: got 0"),
        ({"networkPolicy": {"serverEgressPorts": [0]}}, "'/networkPolicy/serverEgressPorts/0': mi"),
        ({"commonLabels": {"team": 7}}, "'/commonLabels/team': got number, want string"),
        ({"imagePullSecrets": ["registry"]}, "'/imagePullSecrets/0': got string, want object"),
        ({"fullnameOverride": "Grow_Page"}, "'/fullnameOverride': 'Grow_Page' does not match"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    change: dict[str, Any], message: str, with_helm: Run
) -> None:
    reason = with_helm(refusal, merged(BOTH, change))
    assert reason is not None and message in reason


# -- refused since it contradicts itself -----------------------------------------------------------

SCALED = {"scaledObject": {"enabled": True}}
HPA = {"hpa": {"enabled": True}}
ACTS = {"autoscaler": {"act": True}}
RAW = {"external": {"metric": {"name": "vllm_num_preemptions_total"}}, "type": "External"}


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        ({}, {}, "server.image.repository is not set: no image is published, so build"),
        (SERVER, {"server": {"enabled": False}}, "there is nothing to install, so turn one on"),
        (
            BOTH,
            {**SCALED, **HPA},
            "scaledObject.enabled and hpa.enabled are both true: KEDA makes an HPA of its own and "
            "the two would fight over the replicas, so turn one off",
        ),
        (
            BOTH,
            {**SCALED, **ACTS},
            "autoscaler.act and scaledObject.enabled are both true: two controllers would fight",
        ),
        (BOTH, {**HPA, **ACTS}, "autoscaler.act and hpa.enabled are both true: two controllers"),
        (
            merged(BOTH, SCALED),
            {"server": {"enabled": False}},
            "scaledObject.enabled is true but server.enabled is false",
        ),
        (
            merged(BOTH, HPA),
            {"server": {"replicas": 3}},
            "server.replicas is 3, but hpa sets the number of replicas and every upgrade would",
        ),
        (
            merged(BOTH, ACTS),
            {"server": {"replicas": 3}},
            "server.replicas is 3, but autoscaler.act sets the number of replicas",
        ),
        (
            merged(BOTH, SCALED),
            {"scaledObject": {"minReplicas": 5}},
            "scaledObject.minReplicas is 5, but must be at most scaledObject.maxReplicas, 4",
        ),
        (
            BOTH,
            {"autoscaler": {"minReplicas": 5}},
            "autoscaler.minReplicas is 5, but must be at most autoscaler.maxReplicas, 4",
        ),
        (
            SERVER,
            {"server": {"terminationGracePeriodSeconds": 139}},
            "server.terminationGracePeriodSeconds is 139, but must be at least 140: preStopSeconds "
            "+ shutdownTimeoutSeconds, and 10 for vLLM to end",
        ),
        (
            SERVER,
            {"server": {"extraArgs": ["--shutdown_timeout=9"]}},
            "server.extraArgs has --shutdown-timeout: set it with server.shutdownTimeoutSeconds",
        ),
        (
            SERVER,
            {"server": {"extraArgs": ["--api-key", "secret"]}},
            "server.extraArgs has --api-key: set it with server.apiKey.existingSecret (an argument",
        ),
        (
            SERVER,
            {"server": {"extraArgs": ["--growpage-policy=fixed"]}},
            "server.extraArgs has --growpage-policy: settings of the budget belong in",
        ),
        (
            SERVER,
            {
                "server": {
                    "replicas": 2,
                    "cache": {"persistence": {"enabled": True, "accessMode": "ReadWriteOnce"}},
                }
            },
            "accessMode is ReadWriteOnce, but several replicas share the volume",
        ),
        (
            SERVER,
            {"server": {"strategy": {"type": "Recreate"}}},
            "server.strategy.type is Recreate, but server.strategy.rollingUpdate is set",
        ),
        (
            BOTH,
            {"autoscaler": {"prometheus": {"url": ""}}},
            "autoscaler.prometheus.url is not set: the autoscaler decides from Prometheus",
        ),
        (
            BOTH,
            {"server": {"enabled": False}},
            "autoscaler.targets is empty and server.enabled is false",
        ),
        (
            BOTH,
            {
                "autoscaler": {
                    "targets": [{"name": "a", "model": "m", "minReplicas": 3, "maxReplicas": 2}]
                }
            },
            "autoscaler.targets: a has minReplicas 3, but it must be at most its maxReplicas, 2",
        ),
        (
            BOTH,
            {"autoscaler": {"prometheus": {"bearerTokenKey": "token"}}},
            "autoscaler.prometheus.bearerTokenKey is set, but autoscaler.prometheus.existingSecret",
        ),
        (
            BOTH,
            {"autoscaler": {"prometheus": {"existingSecret": "s", "passwordKey": "p"}}},
            "autoscaler.prometheus.username and passwordKey go together",
        ),
        (
            BOTH,
            {"autoscaler": {"prometheus": {"existingSecret": "s", "clientKeyKey": "k"}}},
            "autoscaler.prometheus.clientCertKey and clientKeyKey go together",
        ),
        (
            merged(BOTH, SCALED),
            {"scaledObject": {"trigger": "external"}},
            "scaledObject.trigger is external, but nothing answers it",
        ),
        (
            merged(SERVER, SCALED),
            {"scaledObject": {"prometheus": {"serverAddress": "http://p:9090"}}},
            "autoscaler.enabled is false, so nobody exports growpage_desired_replicas",
        ),
        (merged(SERVER, SCALED), {}, "scaledObject.prometheus.serverAddress is not set"),
        (
            merged(BOTH, SCALED),
            {"scaledObject": {"prometheus": {"query": "sum(vllm:num_preemptions_total)"}}},
            "scaledObject.prometheus.query reads a counter as it is, which only ever grows",
        ),
        (
            merged(BOTH, SCALED),
            {"scaledObject": {"fallback": {"replicas": 9}}},
            "scaledObject.fallback.replicas is 9, but must be between minReplicas, 1, and",
        ),
        (SERVER, HPA, "hpa.metrics is empty and autoscaler.enabled is false"),
        (
            merged(SERVER, HPA),
            {"hpa": {"metrics": [RAW]}},
            "hpa.metrics names the counter vllm_num_preemptions_total, which only ever grows",
        ),
        (
            SERVER,
            {"podDisruptionBudget": {"enabled": True, "minAvailable": 1}},
            "podDisruptionBudget needs exactly one of maxUnavailable and minAvailable",
        ),
        (
            SERVER,
            {"server": {"podLabels": {"app.kubernetes.io/component": "x"}}},
            "the label app.kubernetes.io/component selects this chart's pods",
        ),
    ],
)
def test_a_contradiction_is_refused_in_one_sentence(
    base: dict[str, Any], change: dict[str, Any], message: str, with_helm: Run
) -> None:
    reason = with_helm(refusal, merged(base, change))
    assert reason is not None and message in reason


# -- the schema itself -----------------------------------------------------------------------------


def properties(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path, schema and default (if any) of every value that is named."""
    for key, value in schema.get("properties", {}).items():
        yield f"{path}.{key}", value, schema
        yield from properties(value, f"{path}.{key}")
        yield from properties(value.get("items", {}), f"{path}.{key}[]")


def test_every_value_is_described_and_nothing_else_is_taken() -> None:
    found = list(properties(SCHEMA))
    assert len(found) > 150
    assert SCHEMA["additionalProperties"] is False
    for path, value, owner in found:
        assert owner["additionalProperties"] is False, path
        if ".clients[]" not in path and ".monitoring[]" not in path and ".keda[]" not in path:
            assert value.get("description", "").endswith("."), path


def test_the_values_file_shows_every_value_with_its_default() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(DEFAULTS, SCHEMA)
    optional = {".global", ".scaledObject.prometheus.authenticationRef"}
    for path, _, _ in properties(SCHEMA):
        if (
            "[]" in path
            or path.startswith((".server.growpage.", ".server.rollout."))
            or path in optional
        ):
            continue
        if path.rpartition(".")[0] in optional:
            continue
        value: Any = DEFAULTS
        for key in path.lstrip(".").split("."):
            assert key in value, path
            value = value[key]


def test_the_budgets_settings_are_those_of_the_server() -> None:
    described = SCHEMA["properties"]["server"]["properties"]["growpage"]["properties"]
    settings = BudgetConfig.model_json_schema()["properties"]
    assert described.keys() == settings.keys()
    for setting, schema in settings.items():
        options = schema.get("anyOf", [schema])
        bounds = {
            key: value
            for key, value in options[0].items()
            if key in ("enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        }
        kinds = [option["type"] for option in options]
        if "enum" in bounds and "null" in kinds:
            bounds["enum"] = [*bounds["enum"], None]
        expected = {"type": kinds if len(kinds) > 1 else kinds[0], **bounds}
        given = {key: value for key, value in described[setting].items() if key != "description"}
        assert given == expected, setting
        assert described[setting]["description"] == " ".join(schema["description"].split())


def test_the_charts_version_is_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


# -- what it makes of them -------------------------------------------------------------------------


def made(with_helm: Run, values: Mapping[str, Any]) -> list[Manifest]:
    return documents(with_helm(render, values))


def server_pod(manifests: list[Manifest]) -> dict[str, Any]:
    (deployment,) = (each for each in of_kind(manifests, "Deployment") if "server" in name(each))
    return pod_spec(deployment)


def test_whatever_acts_on_others_is_off_by_default(with_helm: Run) -> None:
    kinds = sorted(each["kind"] for each in made(with_helm, SERVER))
    assert kinds == ["Deployment", "Service", "ServiceAccount"]


def test_the_server_takes_the_documented_settings(rendered: dict[str, list[Manifest]]) -> None:
    parser = budget_parser("", "")
    add_operations(parser)
    budgets = []
    for manifests in rendered.values():
        for deployment in of_kind(manifests, "Deployment"):
            container = pod_spec(deployment)["containers"][0]
            if container["name"] == "server":
                _, budget, rest = split_budget(parser, container["args"][1:])
                assert not any(each.startswith("--growpage") for each in rest)
                budgets.append(budget)
    assert BudgetConfig(policy="fixed", budget=512) in budgets
    assert BudgetConfig(policy="elastic", min_pages=8) in budgets


def test_the_server_takes_the_rollout(rendered: dict[str, list[Manifest]], tmp_path: Path) -> None:
    (content,) = (
        each["data"]["rollout.yaml"]
        for each in of_kind(rendered["staged"], "ConfigMap")
        if "rollout.yaml" in each["data"]
    )
    file = tmp_path / "rollout.yaml"
    file.write_text(content, encoding="utf-8")
    stage = Rollout.from_file(file)
    assert (stage.mode, stage.quotas) == ("enforce", {"canary": 400})


def test_the_rollouts_settings_are_those_of_the_server() -> None:
    described = SCHEMA["properties"]["server"]["properties"]["rollout"]["properties"]
    schema = Rollout.model_json_schema()
    assert described.keys() == schema["properties"].keys()
    assert described["mode"]["enum"] == schema["properties"]["mode"]["enum"]
    only = described["only"]["properties"]
    assert only.keys() == schema["$defs"]["Selection"]["properties"].keys()


def test_another_stage_restarts_no_server(with_helm: Run) -> None:
    def servers(stage: Mapping[str, Any]) -> list[Manifest]:
        values = merged(SERVER, {"server": {"rollout": stage}})
        return of_kind(made(with_helm, values), "Deployment")

    assert servers({"mode": "observe"}) == servers({"mode": "enforce"})
    assert servers({"mode": "observe"}) != servers({})


def test_settings_become_flags(with_helm: Run) -> None:
    values = {
        "model": "org/model",
        "servedModelName": "chat",
        "growpage": {"policy": "elastic", "min_pages": 8, "centre_keys": False, "tau": 0.5},
        "extraArgs": ["--max-model-len=8192", '--override-generation-config={"a": 1}'],
    }
    args = server_pod(made(with_helm, merged(SERVER, {"server": values})))["containers"][0]["args"]
    assert args == [
        "serve",
        "org/model",
        "--port=8000",
        "--shutdown-timeout=120",
        "--served-model-name=chat",
        "--growpage-centre-keys=false",
        "--growpage-min-pages=8",
        "--growpage-policy=elastic",
        "--growpage-tau=0.5",
        "--max-model-len=8192",
        '--override-generation-config={"a": 1}',
    ]


def test_secrets_are_referred_to_and_never_written(with_helm: Run) -> None:
    values = merged(
        SERVER,
        {"server": {"apiKey": {"existingSecret": "keys", "key": "chat"}}},
    )
    (key,) = (
        each
        for each in server_pod(made(with_helm, values))["containers"][0]["env"]
        if each["name"] == "VLLM_API_KEY"
    )
    assert key["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "chat"}}
    assert of_kind(made(with_helm, values), "Secret") == []


def test_a_models_name_is_quoted_in_queries_and_labels_stay_valid(with_helm: Run) -> None:
    values = merged(merged(BOTH, SCALED), {"server": {"model": 'a/"b\\c'}})
    (scaled,) = of_kind(made(with_helm, values), "ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert 'model_name="a/\\"b\\\\c"' in query


def test_null_takes_a_default_away(with_helm: Run) -> None:
    values = {
        "server": {
            "image": IMAGE,
            "rollout": {"max_growth_rate": None},
            "strategy": {"type": "Recreate", "rollingUpdate": None},
        },
        "podDisruptionBudget": {"enabled": True, "maxUnavailable": None, "minAvailable": "50%"},
    }
    manifests = made(with_helm, values)
    (stage,) = of_kind(manifests, "ConfigMap")
    assert yaml.safe_load(stage["data"]["rollout.yaml"]) == {"max_growth_rate": None}
    (deployment,) = of_kind(manifests, "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    (budget,) = of_kind(manifests, "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == "50%" and "maxUnavailable" not in budget["spec"]


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://mimir:8080/prometheus", 8080),
        ("http://prometheus", 80),
        ("https://prometheus.example.com/x:1", 443),
    ],
)
def test_the_autoscaler_reaches_prometheus_through_its_policy(
    url: str, port: int, with_helm: Run
) -> None:
    values = merged(
        BOTH, {"autoscaler": {"prometheus": {"url": url}}, "networkPolicy": {"enabled": True}}
    )
    (policy,) = (
        each
        for each in of_kind(made(with_helm, values), "NetworkPolicy")
        if name(each).endswith("-autoscaler")
    )
    ports = [each["port"] for rule in policy["spec"]["egress"] for each in rule["ports"]]
    assert port in ports
    assert len(ports) == len(set(ports)) + 1  # DNS by UDP and by TCP


def test_a_replica_of_the_autoscaler_stands_by_elsewhere(with_helm: Run) -> None:
    def affinity(replicas: int) -> Any:
        values = merged(BOTH, {"autoscaler": {"replicas": replicas}})
        (deployment,) = (
            each
            for each in of_kind(made(with_helm, values), "Deployment")
            if name(each).endswith("-autoscaler")
        )
        return pod_spec(deployment).get("affinity")

    assert affinity(1) is None
    assert "podAntiAffinity" in affinity(2)


def test_a_new_version_of_the_chart_restarts_no_pod(with_helm: Run, tmp_path: Path) -> None:
    newer = tmp_path / "growpage"
    shutil.copytree(CHART, newer)
    chart = newer / "Chart.yaml"
    text = chart.read_text(encoding="utf-8")
    assert f"version: {__version__}" in text
    chart.write_text(text.replace(f"\nversion: {__version__}", "\nversion: 9.9.9"), "utf-8")
    before = made(with_helm, BOTH)
    after = documents(with_helm(render, BOTH, chart=newer))
    assert before != after
    for old, new in zip(of_kind(before, "Deployment"), of_kind(after, "Deployment"), strict=True):
        assert old["spec"] == new["spec"]


def test_a_new_configuration_restarts_the_autoscaler(with_helm: Run) -> None:
    def checksums(policy: Mapping[str, Any]) -> set[str]:
        values = merged(BOTH, {"autoscaler": {"policy": policy}})
        return {
            each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for each in of_kind(made(with_helm, values), "Deployment")
            if name(each).endswith("-autoscaler")
        }

    assert checksums({}) == checksums({})
    assert checksums({}) != checksums({"scale_out_usage": 0.8})


def test_a_targets_own_policy_wins(with_helm: Run) -> None:
    values = merged(
        BOTH,
        {
            "autoscaler": {
                "policy": {"scale_out_usage": 0.8, "queue_waiting": 5},
                "targets": [
                    {"name": "a", "model": "m", "maxReplicas": 2, "policy": {"queue_waiting": 9}}
                ],
            }
        },
    )
    (config,) = of_kind(made(with_helm, values), "ConfigMap")
    settings = yaml.safe_load(config["data"]["autoscaler.yaml"])
    assert settings["models"] == [
        {
            "model": "m",
            "target": {"namespace": "growpage", "kind": "Deployment", "name": "a"},
            "policy": {
                "min_replicas": 1,
                "max_replicas": 2,
                "queue_waiting": 9,
                "scale_out_usage": 0.8,
            },
        }
    ]

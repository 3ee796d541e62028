"""A wrong setting is one line that names it, its value and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from growpage.budget.errors import ConfigError
from growpage.fleet.config import AutoscalerSettings, Policy
from growpage.fleet.metric_names import Signal, check_name

GOOD: dict[str, Any] = {
    "prometheus": {"url": "http://prometheus:9090"},
    "models": [{"model": "m", "target": "prod/m"}],
}


def with_policy(**policy: Any) -> dict[str, Any]:
    return {**GOOD, "models": [{"model": "m", "target": "prod/m", "policy": policy}]}


def with_model(**more: Any) -> dict[str, Any]:
    return {**GOOD, "models": [{"model": "m", "target": "prod/m", **more}]}


def with_prometheus(**more: Any) -> dict[str, Any]:
    return {**GOOD, "prometheus": {"url": "http://prometheus:9090", **more}}


def test_the_defaults_are_those_that_are_documented() -> None:
    policy = AutoscalerSettings.of(GOOD).models[0].policy
    assert policy == Policy()
    assert (policy.scale_out_usage, policy.scale_in_usage, policy.fit_usage) == (0.85, 0.30, 0.75)
    assert (policy.queue_waiting, policy.cold_start_margin) == (10, 1.5)
    assert str(AutoscalerSettings.of(GOOD).models[0].target.target()) == "prod/Deployment/m"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (with_policy(min_replicas=0), "policy.min_replicas is 0, but must be greater than"),
        (
            with_policy(min_replicas=3, max_replicas=2),
            "max_replicas is 2, but must be at least min_replicas, 3",
        ),
        (
            with_policy(scale_in_usage=0.8),
            "scale_in_usage is 0.8, but must be at most fit_usage, 0.75",
        ),
        (with_policy(scale_out_usage=float("nan")), "must be a finite number"),
        (with_policy(scale_out_usage=85), "is 85, but must be less than or equal to 1"),
        (with_policy(scale_out_usag=0.8), "not a setting: did you mean scale_out_usage?"),
        ({**GOOD, "modles": []}, "modles is not a setting: did you mean models?"),
        ({"models": []}, "prometheus is missing"),
        (with_prometheus(url="prometheus:9090"), "must be like http://prometheus:9090"),
        (with_prometheus(url="http://u:p@prometheus"), "use username and password_file"),
        (with_prometheus(username="u"), "username and password_file must be given together"),
        (with_prometheus(ca_file="/nowhere"), "ca_file is /nowhere, but there is no such file"),
        (with_model(target="m"), "target is 'm', but must be namespace/Deployment/name"),
        (with_model(target="prod/Pod/m"), "'Pod', but must be 'Deployment' or 'StatefulSet'"),
        (
            {**GOOD, "models": [GOOD["models"][0], {"model": "n", "target": "prod/m"}]},
            "prod/Deployment/m is the target of m and of n",
        ),
        (
            with_model(metrics={"kv_usage": "vllm:gpu_cache_usage_factor"}),
            "vllm:gpu_cache_usage_factor does not exist: did you mean vllm:kv_cache_usage_perc?",
        ),
        (
            {"prometheus": GOOD["prometheus"], "kubernetes": {"act": True}},
            "kubernetes is given, but no models",
        ),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        AutoscalerSettings.of(settings)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_environment_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERVAL_SECONDS", "3")
    monkeypatch.setenv("PROMETHEUS__URL", "http://elsewhere")
    assert AutoscalerSettings.of(GOOD).interval_seconds == 15


def test_a_flag_replaces_one_setting_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "autoscaler.yaml"
    file.write_text("prometheus: {url: http://a:1, tenant: t}\ninterval_seconds: 30\n")
    settings = AutoscalerSettings.from_file(file, {"prometheus": {"url": "http://b:2"}})
    assert (settings.prometheus.url, settings.prometheus.tenant) == ("http://b:2", "t")
    assert settings.digest() != AutoscalerSettings.from_file(file).digest()


def test_a_file_that_says_a_thing_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "autoscaler.yaml"
    file.write_text("prometheus: {url: http://a:1}\ninterval_seconds: 30\ninterval_seconds: 5\n")
    with pytest.raises(ConfigError, match="interval_seconds is given 2 times"):
        AutoscalerSettings.from_file(file)


@pytest.mark.parametrize(
    ("signal", "name"),
    [
        (Signal.KV_USAGE, "vllm:kv_cache_usage_perc"),
        (Signal.KV_USAGE, "vllm_kv_cache_usage_perc"),
        (Signal.KV_USAGE, "vllm:gpu_cache_usage_perc"),
        (Signal.KV_USAGE, "team:kv_usage:max"),
    ],
)
def test_names_that_are_right(signal: Signal, name: str) -> None:
    assert check_name(signal, name) == name


@pytest.mark.parametrize(
    ("signal", "name", "meant"),
    [
        (Signal.KV_USAGE, "vllm:kv_cache_usage_percent", "vllm:kv_cache_usage_perc"),
        (Signal.KV_USAGE, "vllm_gpu_cache_usage_factor", "vllm:kv_cache_usage_perc"),
        (Signal.RUNNING, "vllm:requests_running", "vllm:num_requests_running"),
        (Signal.RUNNING, "vllm:num_requests_waiting", "use vllm:num_requests_running"),
        (Signal.GROWTH_REFUSED, "growpage_growth_refused", "growpage_growth_refused_total"),
    ],
)
def test_the_right_name_is_said_for_a_wrong_one(signal: Signal, name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=meant):
        check_name(signal, name)

"""The autoscaler's configuration: one YAML file, validated whole before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from growpage.budget.errors import ConfigError
from growpage.budget.settings_file import load_settings
from growpage.fleet.metric_names import Signal, check_name
from growpage.fleet.targets import Kind, Target

Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=10_000)]

STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Policy(BaseModel):
    """Every threshold of the decision for one model."""

    model_config = STRICT

    min_replicas: Count = 1
    """Fewer than this is mended at once, whatever the data say."""
    max_replicas: Count = 10
    """More than this is never asked for."""

    scale_out_usage: Share = 0.85
    """Scale out when the pods' mean KV usage, or the share of their slots that run, is this."""
    target_usage: Share = 0.75
    """What that usage should be after a scale-out."""
    scale_in_usage: Share = 0.30
    """Scale in only when the pods' mean KV usage is below this."""
    fit_usage: Share = 0.75
    """Scale in only when the load on the replicas that are left would be below this."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Load that differs from the target by no more than this share changes nothing."""

    queue_waiting: Annotated[int, Field(ge=0)] = 10
    """Scale out when more requests than this wait for capacity, over all pods ..."""
    queue_seconds: Seconds = 60
    """... for as long as this."""
    max_num_seqs: Count | None = None
    """Requests that one replica runs at once, where `growpage_max_num_seqs` does not say."""

    demand_target: Annotated[float, Field(gt=0)] = 1.0
    """While growth is refused: uncompressed KV that the fleet should have room for, as a share of
    its capacity; 2 lets requests be compressed to half."""
    max_predicted_loss: Share | None = None
    """Never scale in while compression is predicted to lose more attention mass than this."""

    prediction: bool = True
    """Scale out before the KV cache is full, if it fills faster than a replica starts."""
    prediction_seconds: Seconds = 300
    """History that the slope is taken from."""
    cold_start_seconds: Seconds | None = None
    """90th percentile of a pod's creation to ready. Default: measured; unknown outside Kubernetes,
    and then there is no prediction."""
    cold_start_margin: Annotated[float, Field(ge=1)] = 1.5
    """Predict this many cold starts ahead."""

    max_age_seconds: Seconds = 60
    """Older samples are stale."""
    usage_window_seconds: Seconds = 60
    """A pod's KV usage is its maximum over this time."""
    scale_out_window_seconds: Annotated[float, Field(ge=0, le=3600)] = 30
    """The least that was wanted over this time is what a scale-out asks for."""
    scale_in_window_seconds: Seconds = 300
    """All conditions for a scale-in must have held for this long."""

    scale_out_step: Count = 4
    """Replicas that may be added in a period ..."""
    scale_out_step_percent: Annotated[float, Field(ge=0, le=1000)] = 100
    """... or this share of the current ones, whichever is more."""
    scale_out_period_seconds: Seconds = 60
    scale_in_step: Count = 1
    """Replicas that may be removed in a period."""
    scale_in_period_seconds: Seconds = 60

    reversal_limit: Count = 3
    """After so many changes of direction there is no scale-in ..."""
    reversal_window_seconds: Seconds = 1800
    """... until fewer are left in this time."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas is {self.max_replicas}, but must be at least min_replicas, "
                f"{self.min_replicas}"
            )
        for low, high in (
            ("scale_in_usage", "fit_usage"),
            ("fit_usage", "scale_out_usage"),
            ("scale_in_usage", "target_usage"),
            ("target_usage", "scale_out_usage"),
        ):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(
                    f"{low} is {getattr(self, low):g}, but must be at most {high}, "
                    f"{getattr(self, high):g}"
                )
        return self

    def history_seconds(self, interval: float) -> float:
        """How far back the decision looks, observations every ``interval`` seconds."""
        longest = max(self.scale_in_window_seconds, self.prediction_seconds, self.queue_seconds)
        return longest + self.scale_out_window_seconds + interval


class TargetSettings(BaseModel):
    """The workload that serves a model."""

    model_config = STRICT

    namespace: Annotated[str, Field(min_length=1)]
    kind: Kind = "Deployment"
    name: Annotated[str, Field(min_length=1)]

    def target(self) -> Target:
        """The same as the rest of the autoscaler knows it."""
        return Target(self.namespace, self.kind, self.name)


class ModelSettings(BaseModel):
    """One served model: where its metrics and its replicas are, and its policy."""

    model_config = STRICT

    model: Annotated[str, Field(min_length=1)]
    """Its served name: the label `model_name` of vLLM's metrics."""
    target: TargetSettings
    """The workload whose replicas serve it."""
    match: dict[str, str] = {}
    """More labels that its series have, such as `job`."""
    metrics: dict[Signal, str] = {}
    """Other metrics to take signals from, such as recording rules of your own."""
    policy: Policy = Policy()
    """Its thresholds."""

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: dict[Signal, str]) -> dict[Signal, str]:
        for signal, name in metrics.items():
            check_name(signal, name)
        return metrics

    @model_validator(mode="before")
    @classmethod
    def _reads_target(cls, value: Any) -> Any:
        """``namespace/name`` and ``namespace/Kind/name`` too."""
        if isinstance(value, Mapping) and isinstance(value.get("target"), str):
            parts = value["target"].split("/")
            names = {2: ("namespace", "name"), 3: ("namespace", "kind", "name")}.get(len(parts))
            if names is None:
                raise ValueError(
                    f"target is {value['target']!r}, but must be namespace/Deployment/name"
                )
            return {**value, "target": dict(zip(names, parts, strict=True))}
        return value


class PrometheusSettings(BaseModel):
    """Where Prometheus is, and how it is asked."""

    model_config = STRICT

    url: str
    """Its address, with the path that it is served under if there is one."""
    bearer_token_file: Path | None = None
    """A token, read for every request."""
    username: str | None = None
    """For basic authentication, with `password_file`."""
    password_file: Path | None = None
    ca_file: Path | None = None
    """Certificates to trust instead of the system's."""
    client_cert_file: Path | None = None
    """For mutual TLS, with `client_key_file` unless the key is in it."""
    client_key_file: Path | None = None
    tenant: str | None = None
    """Sent as `X-Scope-OrgID` (Mimir, Thanos)."""
    timeout_seconds: Seconds = 10
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """How often a question is asked again that could not be answered."""
    namespace_label: str | None = "namespace"
    """The label that holds a pod's namespace; none if series have none."""
    pod_label: str = "pod"
    """The label that names a pod; series without it are told apart by `instance`."""

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port  # raises where it is no number
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(f"url is {url!r}, but must be like http://prometheus:9090")
        if parts.username is not None:
            raise ValueError("url holds a user: use username and password_file instead")
        return url

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file must be given together")
        if self.username is not None and self.bearer_token_file is not None:
            raise ValueError("bearer_token_file and username exclude each other")
        if self.client_key_file is not None and self.client_cert_file is None:
            raise ValueError("client_key_file needs client_cert_file")
        for name in ("bearer_token_file", "password_file", "ca_file", "client_cert_file"):
            path: Path | None = getattr(self, name)
            if path is not None and not path.is_file():
                raise ValueError(f"{name} is {path}, but there is no such file")
        return self


class KubernetesSettings(BaseModel):
    """The cluster that the targets run in."""

    model_config = STRICT

    act: bool = False
    """Patch the targets' scale. Default: only say what is decided."""
    kubeconfig: Path | None = None
    """Default: the pod's own service account, or else the user's kubeconfig."""
    context: str | None = None
    """The kubeconfig's context. Default: its current one."""
    lease_namespace: str | None = None
    """Where the Lease is by which one of several autoscalers acts. Default: the pod's own."""
    lease_name: str = "growpage-autoscaler"
    drain: Literal["require", "warn"] = "require"
    """What to do about a scale-in that would abort requests: refuse it, or warn of it."""
    events: bool = True
    """Record decisions as Events on the targets."""


class AutoscalerSettings(BaseSettings):
    """All of the configuration. It comes from one file, and never from the environment."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    prometheus: PrometheusSettings
    models: list[ModelSettings] = []
    """The models to decide for. Default: every one that Prometheus knows, which can be looked at
    and not acted on."""
    policy: Policy = Policy()
    """Of models that are found and not listed."""
    kubernetes: KubernetesSettings | None = None
    """Ask Kubernetes for replicas and pods. Default: they are what Prometheus scrapes."""
    keda_address: str | None = None
    """Answer KEDA's external scaler calls (gRPC) here, such as 0.0.0.0:6000. Default: nowhere."""
    interval_seconds: Seconds = 15
    """Between two decisions, and between the observations that they look back on."""
    audit_file: Path | None = None
    """Where every decision is written, one JSON object a line. Default: nowhere."""
    listen_host: str = "0.0.0.0"
    """For `/metrics`, `/healthz` and `/readyz` ..."""
    listen_port: Annotated[int, Field(ge=0, le=65_535)] = 9109
    """... and their port; 0 takes a free one."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is given: a variable of the environment must not move a threshold."""
        return (init_settings,)

    @model_validator(mode="after")
    def _targets_once(self) -> Self:
        seen: dict[Target, str] = {}
        for model in self.models:
            target = model.target.target()
            if target in seen:
                raise ValueError(
                    f"{target} is the target of {seen[target]} and of {model.model}: "
                    "a workload can follow one decision only"
                )
            seen[target] = model.model
        if self.kubernetes is not None and not self.models:
            raise ValueError("kubernetes is given, but no models: name each model and its target")
        return self

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Validate ``settings``.

        Raises:
            ConfigError: one line for the first wrong field: its path, its value, what is allowed.
        """
        try:
            return cls(**settings)
        except ValidationError as error:
            raise ConfigError(_explain(error.errors()[0])) from None

    @classmethod
    def from_file(cls, path: Path, overrides: Mapping[str, Any] | None = None) -> Self:
        """Load a YAML file, or a JSON file named so; ``overrides`` replace whole settings of it.

        ``{"prometheus": {"url": ...}}`` replaces the address alone.

        Raises:
            ConfigError: the file cannot be read, or holds a wrong field.
        """
        content = load_settings(path)
        if not isinstance(content, dict):
            raise ConfigError(f"{path} must hold a mapping such as 'prometheus: {{url: ...}}'")
        try:
            return cls.of(_merged(content, overrides or {}))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def digest(self) -> str:
        """A short hash that changes with every setting."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _merged(content: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(content)
    for name, value in overrides.items():
        inner = merged.get(name)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            merged[name] = _merged(inner, value)
        else:
            merged[name] = value
    return merged


_SECTIONS: Mapping[str, type[BaseModel]] = {
    "policy": Policy,
    "target": TargetSettings,
    "prometheus": PrometheusSettings,
    "kubernetes": KubernetesSettings,
}


def _explain(error: ErrorDetails) -> str:
    """One line for a pydantic error."""
    path = ".".join(str(part) for part in error["loc"]) or "configuration"
    if error["type"] == "extra_forbidden":
        return _explain_unknown(error["loc"], path)
    if error["type"] == "missing":
        return f"{path} is missing"
    if error["type"] == "value_error":  # of our own validators, which say it all
        where = f"{path}: " if error["loc"] else ""
        return where + error["msg"].removeprefix("Value error, ")
    value = repr(error["input"])
    shown = value if len(value) <= 80 else f"{value[:77]}..."
    return f"{path} is {shown}, but " + error["msg"].replace("Input should", "must", 1)


def _explain_unknown(location: tuple[int | str, ...], path: str) -> str:
    section: type[BaseModel] = AutoscalerSettings
    for part in location[:-1]:
        section = ModelSettings if isinstance(part, int) else _SECTIONS.get(part, section)
    names = list(section.model_fields)
    close = get_close_matches(str(location[-1]), names, n=1)
    if close:
        return f"{path} is not a setting: did you mean {close[0]}?"
    return f"{path} is not a setting; the settings are {', '.join(names)}"

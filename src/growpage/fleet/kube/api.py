"""Connecting to the Kubernetes API: a time limit on every call, errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from growpage.fleet.targets import ScaleError

FIELD_MANAGER = "growpage-autoscaler"
"""Who changes things, as the server records it in ``managedFields``."""

MERGE_PATCH = "application/merge-patch+json"

NO_ANSWER = "no answer from the Kubernetes API"


class MissingPermissionError(ScaleError):
    """RBAC does not allow it; the message names the permission."""


class ConnectError(Exception):
    """The Kubernetes API cannot be reached with what is configured; the message says why."""


@dataclass(frozen=True)
class Permission:
    """What RBAC calls a call."""

    group: str
    """The API group; the empty one is the core's."""
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {f'{self.resource}.{self.group}' if self.group else self.resource}"


class _BoundedClient(client.ApiClient):
    """The official client, with a time limit on every call that gives none itself.

    A call without a limit waits for ever on a connection that has silently died, and the lock of
    the official leader election gives none.
    """

    def __init__(self, configuration: client.Configuration, limits: tuple[float, float]) -> None:
        super().__init__(configuration)
        self._limits = limits

    def call_api(
        self,
        method: Any,
        url: Any,
        header_params: Any = None,
        body: Any = None,
        post_params: Any = None,
        _request_timeout: Any = None,
    ) -> Any:
        limits = _request_timeout or self._limits
        return super().call_api(method, url, header_params, body, post_params, limits)


def connect(
    kubeconfig: Path | None = None, context: str | None = None, *, timeout_seconds: float = 5.0
) -> client.ApiClient:
    """A client of the cluster's API.

    Args:
        kubeconfig: a kubeconfig file. Without it and ``context``, the service account of the pod
            that this runs in; where there is none, the usual kubeconfig.
        context: a context of the kubeconfig; its current one by default.
        timeout_seconds: limit for connecting, and for each wait for an answer. It should be less
            than the time between a Lease's renewal deadline and its expiry.

    Raises:
        ConnectError: there is no such configuration, or it is not valid.
    """
    configuration = client.Configuration()
    # A repeated write is a decision, and a repeated read is soon due anyway.
    configuration.retries = urllib3.Retry(0, redirect=0)
    if kubeconfig is None and context is None:
        try:
            config.load_incluster_config(configuration)
        except config.ConfigException as no_pod:
            _load_kubeconfig(configuration, None, None, f" (nor is this a pod: {no_pod})")
    else:
        _load_kubeconfig(configuration, kubeconfig, context, "")
    return _BoundedClient(configuration, (timeout_seconds, timeout_seconds))


def _load_kubeconfig(
    configuration: client.Configuration, file: Path | None, context: str | None, also: str
) -> None:
    try:
        config.load_kube_config(
            config_file=None if file is None else str(file),
            context=context,
            client_configuration=configuration,
        )
    except Exception as error:  # the loader lets out whatever the parts of the file raise
        name = file or config.KUBE_CONFIG_DEFAULT_LOCATION
        raise ConnectError(f"cannot use the kubeconfig {name}: {_line(error)}{also}") from error


@contextmanager
def explained(doing: str, permission: Permission, namespace: str) -> Iterator[None]:
    """Turn what a call of the client raises into a :class:`ScaleError` that says what to do."""
    try:
        yield
    except ApiException as error:
        kind = MissingPermissionError if error.status == 403 else ScaleError
        raise kind(f"cannot {doing}: {_reason(error, permission, namespace)}") from error
    except urllib3.exceptions.HTTPError as error:
        raise ScaleError(f"cannot {doing}: {NO_ANSWER} ({_line(error)})") from error
    except ValueError as error:  # as from a proxy that answers in its place
        raise ScaleError(
            f"cannot {doing}: the answer is not one of the Kubernetes API ({_line(error)})"
        ) from error


def _reason(error: ApiException, permission: Permission, namespace: str) -> str:
    said = _message(error)
    match error.status:
        case 0 | None:  # TLS
            return f"{NO_ANSWER} ({said})"
        case 401:
            return f"the Kubernetes API does not accept the credentials ({said})"
        case 403:
            return (
                f"the RBAC permission `{permission}` in namespace {namespace} is missing; "
                f"grant it to the autoscaler's service account ({said})"
            )
        case 404:
            return f"not found ({said})"
        case 409:
            return f"changed meanwhile ({said})"
        case _:
            return f"the Kubernetes API answered {error.status} ({said})"


def _message(error: ApiException) -> str:
    """What the server said, in one line."""
    try:
        said = json.loads(error.body or "")["message"]
    except (ValueError, TypeError, KeyError):
        said = error.reason
    return _line(said)


def _line(said: object) -> str:
    return " ".join(str(said).split())[:300]

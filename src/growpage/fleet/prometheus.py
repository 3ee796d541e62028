"""A client of Prometheus' HTTP API, and of what speaks it too (Thanos, Mimir, VictoriaMetrics).

Only exact metric names are asked for, so that an answer says what was asked: a pattern that matches
nothing looks like a fleet without load.
"""

from __future__ import annotations

import random
import re
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from growpage.budget.errors import ConfigError
from growpage.fleet.config import PrometheusSettings

Sample = tuple[float, float]
"""Seconds since the epoch, and the value then."""

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_WORTH_RETRYING: Final = frozenset({429, 500, 502, 503, 504})
_LONGEST_PAUSE_S: Final = 5.0


class PrometheusError(Exception):
    """Prometheus gave no answer that can be used; the message says why."""


class PrometheusUnreachableError(PrometheusError):
    """It could not be asked at all, or it said that it cannot answer now."""


@dataclass(frozen=True)
class Series:
    """One time series of an answer, oldest sample first."""

    labels: Mapping[str, str]
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Answer:
    """What Prometheus said to one query.

    Attributes:
        query: the query.
        series: what it found, which may be nothing.
        warnings: why it may be less than all, such as a store that a querier could not reach.
    """

    query: str
    series: tuple[Series, ...]
    warnings: tuple[str, ...] = ()


def selector(metric: str, labels: Mapping[str, str]) -> str:
    """The PromQL selector of exactly this metric with exactly these labels.

    Raises:
        ConfigError: a name that PromQL does not allow.
    """
    if not _METRIC_NAME.fullmatch(metric):
        raise ConfigError(f"{metric!r} is no metric name: use letters, digits, _ and :")
    matchers = []
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no label name: use letters, digits and _")
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        matchers.append(f'{name}="{escaped}"')
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


class PrometheusClient:
    """Asks one Prometheus. Use it as a context manager, or close it."""

    def __init__(
        self,
        settings: PrometheusSettings,
        *,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read the certificates; nothing is asked yet.

        Raises:
            ConfigError: a certificate that cannot be read.
        """
        self.url = settings.url.rstrip("/")
        self._retries = settings.retries
        self._sleep = sleep
        headers = {"Accept": "application/json"}
        if settings.tenant is not None:
            headers["X-Scope-OrgID"] = settings.tenant
        self._http = httpx2.Client(
            auth=_auth(settings),
            headers=headers,
            timeout=settings.timeout_seconds,
            verify=_tls(settings),
            transport=transport,
        )

    def __enter__(self) -> PrometheusClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def now(self) -> float:
        """Prometheus' own time, in seconds since the epoch.

        Ages are taken against it, since it is Prometheus' clock that stamps the samples.

        Raises:
            PrometheusError: no answer that can be used.
        """
        data, _ = self._get("/api/v1/query", {"query": "time()"})
        try:
            result = data["result"]
            # VictoriaMetrics makes a vector of it.
            value = result[1] if data["resultType"] == "scalar" else result[0]["value"][1]
            return float(value)
        except (KeyError, IndexError, TypeError, ValueError):
            raise PrometheusError(f"{self.url} does not answer time() as Prometheus does") from None

    def samples(
        self, metric: str, labels: Mapping[str, str], *, end: float, seconds: float
    ) -> Answer:
        """The raw samples of the last ``seconds`` before ``end``, at the times of their scrapes.

        Not what the query at each step of a range would give: there Prometheus repeats a sample for
        up to five minutes, so that a gap looks like a steady value.

        Raises:
            PrometheusError: no answer that can be used.
        """
        query = f"{selector(metric, labels)}[{round(seconds * 1000)}ms]"
        data, warnings = self._get("/api/v1/query", {"query": query, "time": f"{end:.3f}"})
        return _matrix(query, data, warnings)

    def range(
        self, metric: str, labels: Mapping[str, str], *, start: float, end: float, step: float
    ) -> Answer:
        """The values of a metric at every ``step`` seconds from ``start`` to ``end``.

        Raises:
            PrometheusError: no answer that can be used.
        """
        query = selector(metric, labels)
        parameters = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}"}
        data, warnings = self._get("/api/v1/query_range", {**parameters, "step": f"{step:g}"})
        return _matrix(query, data, warnings)

    def _get(self, path: str, parameters: Mapping[str, str]) -> tuple[Any, tuple[str, ...]]:
        for attempt in range(self._retries + 1):
            if attempt:
                # Full jitter, so that autoscalers that failed together do not come back together.
                self._sleep(random.uniform(0, min(_LONGEST_PAUSE_S, 0.25 * 2**attempt)))
            try:
                response = self._http.get(f"{self.url}{path}", params=dict(parameters))
            except httpx2.TransportError as error:
                reason = f"cannot reach Prometheus at {self.url}: {error or type(error).__name__}"
                continue
            if response.status_code not in _WORTH_RETRYING:
                return self._read(response)
            reason = f"Prometheus at {self.url} {_complaint(response)}"
        raise PrometheusUnreachableError(reason)

    def _read(self, response: httpx2.Response) -> tuple[Any, tuple[str, ...]]:
        if response.status_code in (401, 403):
            raise PrometheusError(
                f"Prometheus at {self.url} {_complaint(response)}: check the token, the user and "
                "the tenant"
            )
        if response.status_code != 200:
            raise PrometheusError(f"Prometheus at {self.url} {_complaint(response)}")
        try:
            body = response.json()
            return body["data"], tuple(map(str, body.get("warnings") or ()))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise PrometheusError(
                f"{self.url} does not answer as Prometheus does: check the address"
            ) from None


class _BearerFile(httpx2.Auth):
    """A token that is read for every request: Kubernetes replaces it while we run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        try:
            token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PrometheusError(f"cannot read the bearer token {self._path}: {error}") from None
        request.headers["Authorization"] = f"Bearer {token}"
        yield request


class _PasswordFile(httpx2.Auth):
    """A password that is read for every request, as the token is."""

    def __init__(self, username: str, path: Path) -> None:
        self._username = username
        self._path = path

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        try:
            password = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PrometheusError(f"cannot read the password {self._path}: {error}") from None
        yield from httpx2.BasicAuth(self._username, password).auth_flow(request)


def _auth(settings: PrometheusSettings) -> httpx2.Auth | None:
    if settings.bearer_token_file is not None:
        return _BearerFile(settings.bearer_token_file)
    if settings.username is not None and settings.password_file is not None:
        return _PasswordFile(settings.username, settings.password_file)
    return None


def _tls(settings: PrometheusSettings) -> ssl.SSLContext | bool:
    """The system's certificates, or the given ones."""
    if settings.ca_file is None and settings.client_cert_file is None:
        return True
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.client_cert_file is not None:
            context.load_cert_chain(settings.client_cert_file, settings.client_key_file)
    except OSError as error:  # ssl.SSLError is one
        files = (settings.ca_file, settings.client_cert_file, settings.client_key_file)
        named = ", ".join(str(file) for file in files if file is not None)
        raise ConfigError(f"cannot use the certificates {named}: {error}") from None
    return context


def _complaint(response: httpx2.Response) -> str:
    """What an error answer says, on one line."""
    try:
        detail = str(response.json()["error"])
    except (ValueError, TypeError, KeyError):
        detail = response.text
    detail = " ".join(detail.split())[:200]
    return f"answers {response.status_code}" + (f" ({detail})" if detail else "")


def _matrix(query: str, data: Any, warnings: tuple[str, ...]) -> Answer:
    try:
        if data["resultType"] != "matrix":
            raise PrometheusError(f"{query} gave a {data['resultType']}, not a matrix")
        series = tuple(
            Series(
                dict(each["metric"]),
                tuple((float(when), float(value)) for when, value in each["values"]),
            )
            # A native histogram has "histograms" and no values.
            for each in data["result"]
            if "values" in each
        )
    except (KeyError, TypeError, ValueError):
        raise PrometheusError(f"the answer to {query} is not what Prometheus answers") from None
    return Answer(query, series, warnings)

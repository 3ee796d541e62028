"""Evidence from a running vLLM server, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2

from growpage.diagnosis.errors import SourceError, UnreachableError
from growpage.diagnosis.evidence import Evidence, ServerFacts
from growpage.diagnosis.exposition import Scrape, from_exposition

TIMEOUT_S = 10.0

_REFUSED = (401, 403)


def base_url(url: str, *endings: str) -> str:
    """``url`` without a slash at its end, and without these endings, which people copy along.

    Raises:
        SourceError: it is no http(s) address.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise SourceError(f"{url!r} is no address; name one such as http://localhost:8000")
    base = url.rstrip("/")
    for ending in endings:
        base = base.removesuffix(ending)
    return base


def open_client(base: str, api_key: str | None) -> httpx2.Client:
    """A client of ``base`` that sends the key, if there is one, as a bearer token.

    Raises:
        SourceError: the key cannot be sent in a header.
    """
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key):
        raise SourceError("--api-key must be some characters of ASCII, without line breaks")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx2.Client(base_url=base, headers=headers, timeout=TIMEOUT_S, follow_redirects=True)


def request(
    client: httpx2.Client, path: str, form: dict[str, str] | None = None
) -> httpx2.Response:
    """GET ``path``, or POST a form to it.

    Raises:
        UnreachableError: no answer, or one that speaks of a fault of the server (5xx).
    """
    address = f"{client.base_url}".rstrip("/")
    try:
        answer = client.post(path, data=form) if form else client.get(path)
    except httpx2.TooManyRedirects:
        raise UnreachableError(f"{address} redirects without end") from None
    except httpx2.TransportError as error:
        reason = str(error) or type(error).__name__
        raise UnreachableError(f"{address} cannot be reached: {reason}") from None
    if answer.status_code >= 500:
        raise UnreachableError(f"{address} answers {answer.status_code} to {path}")
    return answer


def from_server(
    url: str,
    *,
    api_key: str | None = None,
    watch_s: float = 10.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Evidence:
    """Sample a server's metrics twice, ``watch_s`` seconds apart.

    Raises:
        SourceError: the address is none, the key is refused, or it is no vLLM server.
        UnreachableError: it does not answer.
    """
    base = base_url(url, "/metrics", "/v1")
    with open_client(base, api_key) as client:
        facts = _facts(client, base)
        scrapes = [_scrape(client, base)]
        if not from_exposition(scrapes) and facts.vllm_version is None:
            raise SourceError(
                f"{base} exports no vllm:* metrics and has no /version; is it a vLLM server?"
            )
        sleep(watch_s)
        scrapes.append(_scrape(client, base))
    seconds = scrapes[-1].time - scrapes[0].time
    return Evidence(f"{base}, watched for {seconds:.0f} s", from_exposition(scrapes), server=facts)


def _facts(client: httpx2.Client, base: str) -> ServerFacts:
    models = request(client, "/v1/models")
    if models.status_code in _REFUSED:
        raise SourceError(
            f"{base} refuses /v1/models ({models.status_code}); give its key with --api-key"
        )
    version = _json(request(client, "/version")).get("version")
    listed = _json(models).get("data")
    names = [each.get("id") for each in listed or () if isinstance(each, dict)]
    return ServerFacts(
        vllm_version=version if isinstance(version, str) else None,
        models=tuple(name for name in names if isinstance(name, str)),
        routes=_has_routes(request(client, "/metrics/growpage")),
    )


def _has_routes(answer: httpx2.Response) -> bool:
    """Whether it is growpage's answer: without growpage, vLLM gives all its metrics there."""
    return answer.status_code == 200 and "vllm:" not in answer.text and answer.text[:1] in "#"


def _scrape(client: httpx2.Client, base: str) -> Scrape:
    answer = request(client, "/metrics")
    scrape = Scrape(time.time(), answer.text)
    if answer.status_code in _REFUSED:
        raise SourceError(f"{base} refuses /metrics ({answer.status_code}); check --api-key")
    if answer.status_code != 200:
        raise SourceError(f"{base} answers {answer.status_code} to /metrics; is it a vLLM server?")
    try:
        from_exposition([scrape])
    except ValueError:
        raise SourceError(
            f"{base}/metrics is not in Prometheus's format; is it a vLLM server?"
        ) from None
    return scrape


def _json(answer: httpx2.Response) -> dict[str, Any]:
    """A JSON object; empty if it is none."""
    if answer.status_code != 200:
        return {}
    try:
        content = answer.json()
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}

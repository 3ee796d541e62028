"""Whose request it is: a header that becomes a field of the body, which reaches the engine."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from growpage.budget.rollout import TENANT_FIELD

HEADER = "X-Growpage-Tenant"

_WANTED = HEADER.lower().encode()


class TenantMiddleware:
    """Writes the header :data:`HEADER` into the JSON body of a POST request.

    The header wins over the field: a gateway sets it, and clients must not speak for others.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        tenant = _tenant(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        if tenant is None:
            await self._app(scope, receive, send)
            return
        body = _named(await _read_body(receive), tenant)
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        sent = False

        async def receive_named() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app({**scope, "headers": headers}, receive_named, send)


def _tenant(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == _WANTED:
            return str(value.decode("latin-1")).strip() or None
    return None


async def _read_body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(parts)


def _named(body: bytes, tenant: str) -> bytes:
    """``body`` with the tenant in its ``vllm_xargs``; anything but a JSON object stays as it is."""
    try:
        content: Any = json.loads(body)
    except ValueError:
        return body
    if not isinstance(content, dict):
        return body
    extra = content.get("vllm_xargs")
    content["vllm_xargs"] = {**(extra if isinstance(extra, dict) else {}), TENANT_FIELD: tenant}
    return json.dumps(content).encode()

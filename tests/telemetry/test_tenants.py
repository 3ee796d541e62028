from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from growpage.telemetry.tenants import HEADER, TenantMiddleware


async def echo(request: Request) -> JSONResponse:
    body = await request.body()
    return JSONResponse({"body": body.decode(), "length": request.headers.get("content-length")})


async def ask(content: bytes, headers: dict[str, str], method: str = "POST") -> dict[str, Any]:
    app = TenantMiddleware(Starlette(routes=[Route("/", echo, methods=["GET", "POST"])]))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.request(method, "/", content=content, headers=headers)
        result: dict[str, Any] = answer.json()
        return result


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (b'{"a": 1}', '{"a": 1, "vllm_xargs": {"growpage_tenant": "red"}}'),
        (
            b'{"vllm_xargs": {"x": 2, "growpage_tenant": "blue"}}',
            '{"vllm_xargs": {"x": 2, "growpage_tenant": "red"}}',
        ),
        (b'{"vllm_xargs": null}', '{"vllm_xargs": {"growpage_tenant": "red"}}'),
        (b"[1]", "[1]"),
        (b"no json", "no json"),
        (b"", ""),
    ],
)
async def test_the_header_becomes_a_field_of_the_body(sent: bytes, received: str) -> None:
    answer = await ask(sent, {HEADER: " red "})
    assert answer["body"] == received
    assert answer["length"] == str(len(received))


@pytest.mark.parametrize("headers", [{}, {HEADER: ""}])
async def test_without_the_header_nothing_changes(headers: dict[str, str]) -> None:
    sent = b'{ "a":1, "vllm_xargs": {"growpage_tenant": "blue"} }'
    assert (await ask(sent, headers))["body"] == sent.decode()


async def test_only_posts_have_a_body_to_change() -> None:
    assert (await ask(b"", {HEADER: "red"}, "GET"))["body"] == ""


async def test_a_body_in_pieces_is_read_whole() -> None:
    messages = [
        {"type": "http.request", "body": b'{"a"', "more_body": True},
        {"type": "http.request", "body": b": 1}", "more_body": False},
        {"type": "http.disconnect"},
    ]
    seen: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([await receive(), await receive()])

    scope = {"type": "http", "method": "POST", "headers": [(HEADER.lower().encode(), b"red")]}
    await TenantMiddleware(app)(scope, receive, send)
    assert seen[0]["body"] == b'{"a": 1, "vllm_xargs": {"growpage_tenant": "red"}}'
    assert seen[1] == {"type": "http.disconnect"}, "a client that hangs up is still noticed"

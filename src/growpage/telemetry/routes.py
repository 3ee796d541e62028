"""The live page's routes, to be mounted into vLLM's server: ``/growpage`` and its data."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from pydantic_core import to_json

from growpage.telemetry.feed import read_state

PAGE_PATH = "/growpage"
STATE_PATH = "/growpage/state.json"
FLAG = "--growpage-live"

OFF = f"the live page is off: start the server with {FLAG}"

_COMMON_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def live_routes(folder: Path | None, api_keys: Sequence[str]) -> list[APIRoute]:
    """The page and its data.

    The page itself holds nothing of the engines, so it is served without a key; it asks the
    operator for one where its data needs it.

    Args:
        folder: where the engines write their snapshots; none if the page was not asked for, and
            both routes then answer 404 with what to do.
        api_keys: any of which opens the data, as ``Authorization: Bearer``; none, and it is open.
    """
    page = files(__package__).joinpath("live.html").read_text(encoding="utf-8")
    page_headers = _COMMON_HEADERS | {"Content-Security-Policy": content_security_policy(page)}
    digests = [_digest(key) for key in api_keys]

    def show_page() -> Response:
        if folder is None:
            return _error(404, OFF)
        return HTMLResponse(page, headers=page_headers)

    # Not async: files are read, so each call gets a thread of the server's pool.
    def show_state(request: Request) -> Response:
        if folder is None:
            return _error(404, OFF)
        if digests and not _opens(request.headers.get("Authorization"), digests):
            return _error(401, "Unauthorized")
        state = to_json(read_state(folder, time.time()))
        return Response(state, media_type="application/json", headers=_COMMON_HEADERS)

    return [
        APIRoute(path, endpoint, methods=["GET"], response_model=None, include_in_schema=False)
        for path, endpoint in ((PAGE_PATH, show_page), (STATE_PATH, show_state))
    ]


def content_security_policy(page: str) -> str:
    """Allows the scripts and styles inside ``page``, its own origin, and nothing else."""
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(scripts)}",
            f"style-src {_hashes(styles)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            # Text can never become markup, whatever a client calls its request.
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _hashes(contents: Iterable[str]) -> str:
    digests = (base64.b64encode(_digest(content)).decode() for content in contents)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _opens(authorization: str | None, digests: Sequence[bytes]) -> bool:
    """Whether the header holds a key; as vLLM checks it, in time that says nothing of the keys."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        return False
    given = _digest(key)
    fits = [secrets.compare_digest(given, digest) for digest in digests]  # all of them, always
    return any(fits)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status, headers=_COMMON_HEADERS)

"""The live page's real routes on a real server, and a browser."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from growpage.telemetry.routes import live_routes
from tests.telemetry.chromium import Browser, chromium

ServeLive = Callable[..., "LiveServer"]


class LiveServer:
    """Serves the live page on loopback, as vLLM's server does, until it is stopped."""

    def __init__(self, folder: Path | None, api_keys: Sequence[str], port: int = 0) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        app = FastAPI(routes=live_routes(folder, api_keys))
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < deadline, "uvicorn did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()


@contextmanager
def served(folder: Path | None, api_keys: Sequence[str], port: int) -> Iterator[LiveServer]:
    server = LiveServer(folder, api_keys, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def serve_live() -> Iterator[ServeLive]:
    """Starts servers, which end with the test."""
    with ExitStack() as stack:

        def start(folder: Path | None, *api_keys: str, port: int = 0) -> LiveServer:
            return stack.enter_context(served(folder, api_keys, port))

        yield start


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests; each page that it opens has a profile of its own."""
    with chromium() as running:
        yield running

"""Starts ``growpage serve`` as an operator would, watches it, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from growpage.bench.launch import GRACE_S

START_LIMIT_S = 480.0
"""Seconds that a server has to become healthy: some 25 on an idle machine, most of them for vLLM's
imports, but minutes on a crowded one."""

STOP_LIMIT_S = 60.0
"""Seconds that a server has to end after SIGTERM, before it is killed."""

GROWPAGE_SERVE = (sys.executable, "-m", "growpage", "serve")
PLAIN_SERVE = (sys.executable, "-m", "growpage.bench.plain_server")

_SAMPLE = re.compile(r"^([\w:]+)(?:\{.*\})? (\S+)$", re.MULTILINE)


class ServerError(RuntimeError):
    """The server did not start or did not stop in order; the message ends with its log's end."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    address: str
    process: psutil.Popen
    log: Path

    def metrics(self) -> Mapping[str, float]:
        """``/metrics`` by name, each the sum over its labels.

        Raises:
            httpx.HTTPError: the server does not answer.
        """
        answer = httpx.get(f"{self.address}/metrics", timeout=30).raise_for_status()
        return parse_metrics(answer.text)

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory of each process of the tree, by its name and id."""
        sizes = {}
        for process in (self.process, *self.process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                sizes[f"{_role(process)} {process.pid}"] = process.memory_info().rss
        return sizes


@contextmanager
def serve(
    arguments: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = GROWPAGE_SERVE,
) -> Iterator[Server]:
    """A healthy server, until the block is left.

    Args:
        arguments: of the command; the address is added.
        log: the file that takes everything the server prints.
        environment: variables to set beside ours.
        command: starts a server of vLLM.

    Raises:
        ServerError: it did not become healthy, or left processes behind when it was stopped.
    """
    port = _free_port()
    with log.open("wb") as sink:
        # A session of its own: Ctrl-C reaches only us, and we end the server and all its processes.
        process = psutil.Popen(
            [*command, *arguments, "--host", "127.0.0.1", "--port", str(port)],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        _wait_for_health(server)
        yield server
    except BaseException:
        _kill_group(process.pid)
        raise
    _stop(server)


def parse_metrics(exposition: str) -> dict[str, float]:
    """Values of Prometheus's text format by name, each the sum over its labels."""
    values: dict[str, float] = {}
    for name, value in _SAMPLE.findall(exposition):
        values[name] = values.get(name, 0.0) + float(value)
    return values


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_health(server: Server) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        if server.process.poll() is not None:
            raise _error(server, f"the server ended with status {server.process.returncode}")
        if time.monotonic() > deadline:
            raise _error(server, f"the server is not healthy after {START_LIMIT_S:g} seconds")
        with suppress(httpx.TransportError):
            if httpx.get(f"{server.address}/health", timeout=2).status_code == 200:
                return
        time.sleep(0.5)


def _stop(server: Server) -> None:
    tree = [server.process, *server.process.children(recursive=True)]
    server.process.send_signal(signal.SIGTERM)
    psutil.wait_procs(tree[:1], STOP_LIMIT_S)
    _, left = psutil.wait_procs(tree, GRACE_S)
    if left:
        names = ", ".join(_role(process) for process in left)
        _kill_group(server.process.pid)
        raise _error(server, f"SIGTERM left processes running: {names}")


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _role(process: psutil.Process) -> str:
    """What vLLM calls the process, or the module that Python runs in it."""
    try:
        command: list[str] = process.cmdline()
    except psutil.Error:
        return "ended"
    if command and command[0].startswith("VLLM::"):
        return command[0]
    line = " ".join(command)
    return next((part for part in ("growpage", "resource_tracker") if part in line), "python")


def _error(server: Server, why: str) -> ServerError:
    tail = server.log.read_text(errors="replace")[-4000:]
    return ServerError(f"{why}; its log, {server.log}, ends with:\n{tail}")

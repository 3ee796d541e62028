"""``growpage top`` against the live page's real routes, and against what is no such server."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from growpage.cli.app import app
from growpage.telemetry.feed import read_state, write_snapshot
from growpage.telemetry.terminal import bar, frame, rows_for
from tests.telemetry.conftest import served
from tests.telemetry.rehearsal import RehearsedEngine, three_engines

KEY = "open-sesame"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live")
    for engine in three_engines(time.time()):
        write_snapshot(path, engine.snapshot())
    return path


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder, [KEY], 0) as server:
        yield server.address


def top(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["top", *arguments], env={"COLUMNS": "120"})
    return result.exit_code, result.stdout, result.stderr


def test_one_frame_shows_pool_queue_requests_and_decisions(address: str, folder: Path) -> None:
    status, out, _ = top("--url", address, "--api-key", KEY, "--once")
    assert status == 0
    one = read_state(folder, time.time())["engines"][0]
    held = one["total_pages"] - one["free_pages"]
    assert "ENFORCE" in out and "policy elastic" in out
    assert f"{held:,} of {one['total_pages']:,} pages" in out
    assert f"{one['running']} of {one['max_num_seqs']}" in out
    assert f"waiting {one['waiting']}" in out
    for request in one["requests"]:
        row = next(line for line in out.splitlines() if request["id"][-11:] in line)
        assert re.search(rf"[█░] +{len(request['pages'])}/\d+ ", row), row
    last = one["decisions"][-1]
    decisions = out.split("Last decisions")[1]
    newest = decisions.splitlines()[2]
    assert last["action"] in newest and last["request"][-11:] in newest
    assert last["reason"] in newest
    for engine in (0, 1, 2):
        assert re.search(rf"{engine}: \d+%, \d+ waiting", out)


def test_an_engine_that_observes_says_so(address: str) -> None:
    status, out, _ = top("--url", address, "--api-key", KEY, "--engine", "1")
    assert status == 0
    assert "OBSERVE" in out and "would compress" in out
    assert "Nothing is evicted" in out


def test_json_is_the_servers_own(address: str, folder: Path, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    status, out, _ = top("--url", address, "--api-key-file", str(key_file), "--json")
    assert status == 0
    assert json.loads(out)["engines"] == json.loads(json.dumps(read_state(folder, 0)["engines"]))


def test_what_goes_wrong_is_one_sentence_with_a_remedy(address: str, tmp_path: Path) -> None:
    port = address.rsplit(":", 1)[1]
    wrong: list[tuple[tuple[str, ...], str]] = [
        (("--url", address), f"{address} asks for its API key: pass --api-key"),
        (("--url", address, "--api-key", "x"), f"{address} refuses this API key"),
        (("--url", f"localhost:{port}", "--api-key", "ä"), "--api-key holds no key"),
        (
            ("--url", address, "--api-key", KEY, "--engine", "7"),
            "--engine is 7, but the server has",
        ),
        (("--url", "http://127.0.0.1:9"), "no server answers at http://127.0.0.1:9 ("),
        (("--url", "ftp://host"), "--url is 'ftp://host', but must be like http://host:8000"),
        (("--url", "http://[::"), "--url is 'http://[::', which is no address"),
        (("--api-key-file", str(tmp_path / "none")), "cannot read the API key from"),
        (("--api-key-file", str(tmp_path), "--api-key", "x"), "one is enough"),
    ]
    for arguments, sentence in wrong:
        status, out, err = top(*arguments, "--once")
        assert (status, out) == (2, ""), arguments
        assert err.startswith("Error: ") and sentence in err, err
        assert err.count("\n") == 1, err


def test_a_server_whose_page_was_not_asked_for() -> None:
    with served(None, [], 0) as server:
        status, _, err = top("--url", server.address, "--once")
    assert status == 2
    assert "has no live page: start it with `growpage serve --growpage-live`" in err


def test_no_engine_has_written_yet(tmp_path: Path) -> None:
    with served(tmp_path, [], 0) as server:
        status, out, _ = top("--url", server.address, "--once")
    assert (status, out.strip()) == (0, "No engine has written its state yet.")


class _SomethingElse(BaseHTTPRequestHandler):
    """A server that answers, but not as growpage does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Welcome to nginx!</html>")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def something_else() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _SomethingElse)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_another_kind_of_server() -> None:
    with something_else() as address:
        status, _, err = top("--url", address, "--once")
    assert status == 2
    assert "is not the state of growpage's engines" in err


def test_a_request_id_cannot_steer_the_terminal() -> None:
    engine = RehearsedEngine(0, 200, 1_800_000_000.0)
    engine.run(20)
    snapshot = engine.snapshot()
    snapshot["requests"][0]["id"] = "\x1b[2J\x1b]0;x\x07\u202e"
    snapshot["requests"][1]["id"] = "[red]x[/red]"
    snapshot["requests"][2]["tenant"] = "\x1b[31m"
    snapshot["decisions"][-1]["request"] = "\x9b31m\r"
    console = Console(width=120, file=io.StringIO())
    console.print(
        frame(
            {"time": 0.0, "engines": [snapshot], "unreadable": []},
            snapshot,
            now=snapshot["time"],
            width=120,
        )
    )
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert not set("\x1b\x07\x9b\r\u202e") & set(text)
    assert "[red]x[/red]" in text


def test_bars_never_round_something_away() -> None:
    assert bar(0, 100, 100) == "░" * 24
    assert bar(1, 1000, 1000) == "█" + "░" * 23
    assert bar(999, 1000, 1000) == "█" * 23 + "░"
    assert bar(1000, 1000, 1000) == "█" * 24
    assert bar(5, 10, 20) == "█" * 6 + "░" * 6


def test_a_frame_fits_into_the_terminal() -> None:
    for height in (21, 30, 50, 100):
        requests, decisions = rows_for(height, 60)
        assert requests >= 3 and decisions >= 3
        assert requests + decisions + 15 <= height


def test_it_follows_the_server_until_interrupted(tmp_path: Path) -> None:
    engine = RehearsedEngine(0, 200, time.time() - 10)
    engine.run(10)
    write_snapshot(tmp_path, engine.snapshot() | {"waiting": 111})  # type: ignore[arg-type]
    ours, theirs = pty.openpty()
    # What a script runs in the background inherits that interrupts are ignored.
    not_ignored = ("env", "--default-signal=INT")
    top = (sys.executable, "-m", "growpage", "top")
    with served(tmp_path, [], 0) as server:
        process = subprocess.Popen(
            [*not_ignored, *top, "--url", server.address, "--interval", "0.5"],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**os.environ, "COLUMNS": "120", "LINES": "40", "TERM": "xterm"},
        )
        os.close(theirs)
        try:
            _read_until(ours, "waiting 111")
            write_snapshot(tmp_path, engine.snapshot() | {"waiting": 222})  # type: ignore[arg-type]
            _read_until(ours, "waiting 222")
            server.stop()
            _read_until(ours, "no server answers")
            process.send_signal(signal.SIGINT)
            _read_until(ours, "\x1b[?1049l")  # the terminal is as it was
            assert process.wait(20) == 0
            assert process.stderr is not None and process.stderr.read() == b""
        finally:
            process.kill()
            process.wait()
            os.close(ours)


def _read_until(terminal: int, words: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    seen = ""
    while words not in seen:
        assert time.monotonic() < deadline, f"{words!r} is not in {seen!r}"
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")

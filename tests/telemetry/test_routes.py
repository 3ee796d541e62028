"""Who gets what from the live page's routes."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
import pytest

from growpage.telemetry.feed import parse_state, write_snapshot
from tests.telemetry.conftest import ServeLive
from tests.telemetry.rehearsal import RehearsedEngine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    engine = RehearsedEngine(0, 100, time.time() - 10)
    engine.run(10)
    write_snapshot(tmp_path, engine.snapshot())
    return tmp_path


def test_the_state_is_that_of_the_files(serve_live: ServeLive, folder: Path) -> None:
    answer = httpx.get(f"{serve_live(folder).address}/growpage/state.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    state = parse_state(answer.content)
    assert [engine["total_pages"] for engine in state["engines"]] == [100]
    assert abs(state["time"] - time.time()) < 30


def test_only_a_key_opens_the_state_and_the_page_has_none_of_it(
    serve_live: ServeLive, folder: Path
) -> None:
    address = serve_live(folder, "first", "second").address
    with httpx.Client(base_url=address) as http:
        refused: list[dict[str, str]] = [
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer"},
            {"Authorization": "Basic first"},
            {"Authorization": "first"},
            {"X-API-Key": "first"},
        ]
        for headers in refused:
            answer = http.get("/growpage/state.json", headers=headers)
            assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"}), headers
        assert http.get("/growpage/state.json?api_key=first").status_code == 401
        for opening in ("Bearer first", "bearer first", "Bearer second"):
            headers = {"Authorization": opening}
            assert http.get("/growpage/state.json", headers=headers).status_code == 200
        page = http.get("/growpage")
    assert page.status_code == 200
    assert "chatcmpl-" not in page.text and "SmolLM2" not in page.text


@pytest.mark.parametrize("path", ["/growpage", "/growpage/state.json"])
def test_a_page_that_was_not_asked_for_says_which_flag_asks_for_it(
    serve_live: ServeLive, path: str
) -> None:
    answer = httpx.get(serve_live(None, "key").address + path)
    assert answer.status_code == 404
    assert answer.json() == {"error": "the live page is off: start the server with --growpage-live"}


def test_the_page_may_load_nothing_from_anywhere(serve_live: ServeLive, folder: Path) -> None:
    answer = httpx.get(f"{serve_live(folder).address}/growpage")
    policy = dict(
        part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    for kind in ("script-src", "style-src"):
        assert re.fullmatch(r"'sha256-[\w+/]{43}='", policy[kind]), policy[kind]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    # All that names an address in the file is the namespace of SVG.
    assert set(re.findall(r"https?://[^\"'\s]+", answer.text)) == {"http://www.w3.org/2000/svg"}
    assert "innerHTML" not in answer.text


def test_post_is_refused(serve_live: ServeLive, folder: Path) -> None:
    assert httpx.post(f"{serve_live(folder).address}/growpage/state.json").status_code == 405

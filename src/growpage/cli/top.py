"""``growpage top``: the live page of a running server, in the terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import httpx2
    from rich.console import Console, RenderableType

    from growpage.telemetry.snapshot import LiveState, Snapshot

STATE_PATH = "/growpage/state.json"
ANSWER_LIMIT_S = 10.0


class TopError(RuntimeError):
    """The server's state cannot be had; the message says why and what to do."""


def top(
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://localhost:8000",
    api_key: Annotated[
        str | None, typer.Option(help="The server's API key, if it has one.")
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="A file that holds the key, so that the list of processes does not."),
    ] = None,
    engine: Annotated[
        int | None, typer.Option(min=0, help="Which engine.  [default: the first]")
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.5, help="Seconds between two looks at the server.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the state of all engines as JSON and exit.")
    ] = False,
) -> None:
    """Watch pages, queue and decisions of a running server.

    The server must have been started with --growpage-live. Where the output
    is not a terminal, one frame is printed. Ctrl-C ends it.
    """
    import httpx2
    from rich.console import Console

    try:
        address = _address(url)
        key = _key(api_key, api_key_file)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        with httpx2.Client(base_url=address, headers=headers, timeout=ANSWER_LIMIT_S) as http:
            state = fetch_state(http, key)
            if as_json:
                typer.echo(json.dumps(state))
                return
            chosen = _choose(state, engine)
            console = Console()
            if once or not console.is_terminal:
                console.print(_one_frame(state, chosen, console.width))
            else:
                _watch(console, http, key, engine, interval, state)
    except TopError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None


def fetch_state(http: httpx2.Client, key: str | None) -> LiveState:
    """What the server says of its engines.

    Raises:
        TopError: it does not answer, refuses, or has no live page.
    """
    import httpx2

    from growpage.telemetry.feed import parse_state

    address = str(http.base_url).rstrip("/")
    try:
        answer = http.get(STATE_PATH)
    except httpx2.TimeoutException:
        raise TopError(f"{address} did not answer within {ANSWER_LIMIT_S:g} seconds") from None
    except httpx2.TransportError as error:
        reason = str(error).strip() or type(error).__name__
        raise TopError(
            f"no server answers at {address} ({reason}); is it running, and is --url right?"
        ) from None
    match answer.status_code:
        case 200:
            pass
        case 401 if key is None:
            raise TopError(f"{address} asks for its API key: pass --api-key or --api-key-file")
        case 401:
            raise TopError(f"{address} refuses this API key")
        case 404:
            raise TopError(
                f"{address} has no live page: start it with `growpage serve --growpage-live`"
            )
        case status:
            raise TopError(f"{address} answers {status} for {STATE_PATH}")
    try:
        return parse_state(answer.content)
    except ValueError:
        raise TopError(
            f"what {address} answers is not the state of growpage's engines; is it growpage, and "
            "of the same version?"
        ) from None


def _address(url: str) -> str:
    import httpx2

    try:
        parsed = httpx2.URL(url if "://" in url else f"http://{url}")
    except httpx2.InvalidURL as error:
        raise TopError(f"--url is {url!r}, which is no address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise TopError(f"--url is {url!r}, but must be like http://host:8000")
    return str(parsed).rstrip("/")


def _key(key: str | None, file: Path | None) -> str | None:
    if key is not None and file is not None:
        raise TopError("--api-key and --api-key-file are both given; one is enough")
    name = "--api-key"
    if file is not None:
        name = str(file)
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text file"
            raise TopError(f"cannot read the API key from {file}: {reason}") from None
    if key is not None and not (key.isascii() and key.isprintable() and key):
        raise TopError(f"{name} holds no key: one is visible ASCII characters in one line")
    return key


def _choose(state: LiveState, engine: int | None) -> Snapshot | None:
    """The engine that was asked for, or the first; none before any has written."""
    snapshots = state["engines"]
    if engine is None or not snapshots:
        return next(iter(snapshots), None)
    for snapshot in snapshots:
        if snapshot["engine"] == engine:
            return snapshot
    known = ", ".join(str(snapshot["engine"]) for snapshot in snapshots)
    raise TopError(f"--engine is {engine}, but the server has {known}")


def _one_frame(state: LiveState, chosen: Snapshot | None, width: int) -> RenderableType:
    from growpage.telemetry.terminal import frame

    if chosen is None:
        return "No engine has written its state yet."
    return frame(state, chosen, now=state["time"], width=width)


def _watch(
    console: Console,
    http: httpx2.Client,
    key: str | None,
    engine: int | None,
    interval: float,
    state: LiveState,
) -> None:
    """Until Ctrl-C; a server that goes away is said to be gone, and waited for."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from growpage.telemetry.terminal import frame, rows_for

    answered = time.monotonic()
    problem: str | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                chosen = _choose(state, engine)
                shown = _one_frame(state, chosen, console.width)
                if chosen is not None:
                    requests, decisions = rows_for(console.height, len(chosen["requests"]))
                    shown = frame(
                        state,
                        chosen,
                        now=state["time"] + time.monotonic() - answered,
                        width=console.width,
                        max_requests=requests,
                        max_decisions=decisions,
                    )
                if problem is not None:
                    shown = Group(Text(f"{problem}; trying again", "bold red"), shown)
                live.update(shown, refresh=True)
                time.sleep(interval)
                try:
                    state, problem = fetch_state(http, key), None
                    answered = time.monotonic()
                except TopError as error:
                    problem = str(error)
        except KeyboardInterrupt:
            return

"""Headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_LIMIT_S = 120.0
ANSWER_LIMIT_S = 60.0

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--disable-extensions", "--mute-audio"),
    "--remote-debugging-port=0",
)


class BrowserError(RuntimeError):
    """Chromium is absent, or did not do what it was asked for."""


class Browser:
    """A running Chromium; :meth:`open` gives pages that know nothing of each other."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._events: dict[str, list[dict[str, Any]]] = {}

    @contextmanager
    def open(self, address: str, *, width: int = 1280, dark: bool = False) -> Iterator[Page]:
        """A page of its own profile at ``address``, whose network and console are recorded."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)[
            "targetId"
        ]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        try:
            for domain in ("Page", "Runtime", "Network", "Log"):
                page.call(f"{domain}.enable")
            page.resize(width)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            page.call("Emulation.setEmulatedMedia", features=[scheme])
            page.call("Page.navigate", url=address)
            page.wait_for("document.readyState === 'complete'")
            yield page
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of a command; events that come meanwhile are kept."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=ANSWER_LIMIT_S))
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            if "method" in answer:
                self._events.setdefault(answer.get("sessionId", ""), []).append(answer)

    def events(self, session: str, method: str) -> list[dict[str, Any]]:
        """Parameters of a session's events of one kind so far."""
        self.call("Browser.getVersion")  # takes in what has already arrived
        return [e["params"] for e in self._events.get(session, ()) if e["method"] == method]


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command to this tab."""
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 40.0) -> None:
        """Until the JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                text = self.evaluate("document.body.innerText")
                raise BrowserError(
                    f"after {seconds:g} s not yet: {condition}; the page says {text}"
                )
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """What a reader sees of the first element that fits."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def count(self, selector: str) -> int:
        """How many elements fit."""
        return int(self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def click(self, selector: str, x: float | None = None, y: float | None = None) -> None:
        """With the mouse: at the middle of an element, or at an offset from its top left."""
        found = json.dumps(selector)
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({found}); e.scrollIntoView("
            "{block: 'center'}); return e.getBoundingClientRect().toJSON(); })()"
        )
        where = {
            "x": box["x"] + (box["width"] / 2 if x is None else x),
            "y": box["y"] + (box["height"] / 2 if y is None else y),
        }
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **where)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def press(self, key: str) -> None:
        """A key by its DOM name, where the focus is."""
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}[key]
        typed = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **(typed if kind == "keyDown" else {}),
            )

    def type(self, text: str) -> None:
        """Text, where the focus is."""
        self.call("Input.insertText", text=text)

    def resize(self, width: int, height: int = 900) -> None:
        """To CSS pixels; narrow ones are a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if width < 500 else 1,
            mobile=width < 500,
        )

    def requests(self) -> list[dict[str, Any]]:
        """Every request that left the page, as the protocol describes it."""
        sent = self._browser.events(self._session, "Network.requestWillBeSent")
        return [event["request"] for event in sent]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, violations of the security policy among them."""
        entries = [
            event["entry"]["text"]
            for event in self._browser.events(self._session, "Log.entryAdded")
            if event["entry"]["level"] in ("error", "warning")
        ]
        thrown = [
            str(event["exceptionDetails"])
            for event in self._browser.events(self._session, "Runtime.exceptionThrown")
        ]
        called = [
            str(event["args"])
            for event in self._browser.events(self._session, "Runtime.consoleAPICalled")
        ]
        return entries + thrown + called

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """As PNG; the ``whole`` page or what the window shows."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, gone when the block is left.

    Raises:
        BrowserError: there is none on this machine, or it did not start.
    """
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise BrowserError(
            f"the tests of the live page need Chromium ({', '.join(NAMES)}), and none is in PATH: "
            "apt install chromium"
        )
    with tempfile.TemporaryDirectory(prefix="growpage-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            address = _address(process, Path(profile) / "DevToolsActivePort")
            with connect(address, max_size=None, open_timeout=START_LIMIT_S) as socket:
                yield Browser(socket)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], note: Path) -> str:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BrowserError(f"{process.args[0]} ended with status {process.returncode}")  # type: ignore[index]
        if note.exists() and len(lines := note.read_text().splitlines()) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise BrowserError(f"Chromium did not start within {START_LIMIT_S:g} seconds")

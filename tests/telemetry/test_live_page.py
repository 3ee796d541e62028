"""The live page in a real browser, on its real routes, with engines that are rehearsed."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from growpage.telemetry.feed import write_snapshot
from growpage.telemetry.snapshot import Snapshot
from tests.telemetry.chromium import Browser, Page
from tests.telemetry.conftest import ServeLive
from tests.telemetry.rehearsal import RehearsedEngine, three_engines

SHOWN = "document.querySelectorAll('#requests li').length > 0"

DECISIONS = 40
"""Of an engine; an engine keeps up to 200, which would cost each test seconds of layout."""


@pytest.fixture(scope="module")
def rehearsed() -> list[RehearsedEngine]:
    return three_engines(time.time())


@pytest.fixture
def snapshots(rehearsed: list[RehearsedEngine], tmp_path: Path) -> list[Snapshot]:
    """Of three engines, fresh in ``tmp_path``."""
    written = [engine.snapshot() for engine in rehearsed]
    for snapshot in written:
        snapshot["time"] = time.time()
        del snapshot["decisions"][:-DECISIONS]
        write_snapshot(tmp_path, snapshot)
    return written


def held_by(snapshot: Snapshot, count: int) -> dict[int, str]:
    """Pages that ``count`` requests hold, each with the first of them."""
    owners: dict[int, list[str]] = {}
    for request in snapshot["requests"]:
        for number in request["pages"]:
            owners.setdefault(number, []).append(request["id"])
    return {number: ids[0] for number, ids in owners.items() if len(ids) == count}


def point_at(page: Page, number: int) -> str:
    """What the page says of a physical page that the mouse clicks on."""
    size, columns = page.evaluate("[grid.size, grid.columns]")
    row, column = divmod(number - 1, columns)
    page.click("#map canvas", (column + 0.4) * size, (row + 0.4) * size)
    return page.text("#readout")


def test_it_shows_every_engine_and_asks_nobody_else(
    browser: Browser, serve_live: ServeLive, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    address = serve_live(tmp_path).address
    with browser.open(f"{address}/growpage") as page:
        page.wait_for(SHOWN)
        assert page.count("#tabs [role=tab]") == 3
        for snapshot in snapshots:
            page.evaluate(f"document.getElementById('tab-{snapshot['engine']}').click()")
            if page.evaluate("!document.getElementById('more').hidden"):
                page.click("#more")
            held = snapshot["total_pages"] - snapshot["free_pages"]
            assert page.text("[data-figure=pool] small").startswith(f"{held:,} of")
            assert page.text("[data-figure=running] span") == str(snapshot["running"])
            assert page.text("[data-figure=waiting] span") == str(snapshot["waiting"])
            assert page.count("#requests li") == len(snapshot["requests"])
            # Pages of the system prompt stay with the rehearsal when nobody uses them.
            listed = len({p for request in snapshot["requests"] for p in request["pages"]})
            cached = len(snapshot.get("cached_pages", ()))
            summary = page.text("#map-sum")
            assert f"{listed:,} held" in summary and f"{cached:,} cached only" in summary
            shown = page.evaluate("[...document.querySelectorAll('#decisions tbody tr')].length")
            assert shown == len(snapshot["decisions"]) == DECISIONS
            assert page.text("#mode") == snapshot["mode"]
            assert snapshot["policy"] in page.text("#setting")
        sent = page.requests()
        assert {"/growpage", "/growpage/state.json"} == {
            request["url"].removeprefix(address)
            for request in sent
            if not request["url"].startswith("data:")
        }
        assert page.complaints() == []


def test_the_map_tells_who_holds_a_page(
    browser: Browser, serve_live: ServeLive, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    one = snapshots[0]
    with browser.open(f"{serve_live(tmp_path).address}/growpage") as page:
        page.wait_for(SHOWN)
        number, owner = next(iter(held_by(one, 1).items()))
        assert owner in point_at(page, number)
        # The click has selected the owner, here and in the list; a second one undoes it.
        assert page.evaluate("document.querySelector('.request.selected').dataset.request") == owner
        colour = page.evaluate(
            f"(() => {{ const {{size, columns}} = grid, at = {number} - 1;"
            "return [...canvas.getContext('2d').getImageData((at % columns) * size + 2,"
            "Math.floor(at / columns) * size + 2, 1, 1).data].slice(0, 3); })()"
        )
        named = page.evaluate(
            "getComputedStyle(document.querySelector('.request.selected .tag')).backgroundColor"
        )
        assert named == f"rgb({', '.join(map(str, colour))})"
        decided = [d for d in one["decisions"] if d["request"] == owner]
        assert page.count("#decisions tbody tr") == len(decided) < len(one["decisions"])
        assert owner in point_at(page, number)
        assert page.count(".request.selected") == 0
        assert page.count("#decisions tbody tr") == len(one["decisions"])

        owners: dict[int, int] = {}
        for request in one["requests"]:
            for held in request["pages"]:
                owners[held] = owners.get(held, 0) + 1
        shared = next(held for held, holders in owners.items() if holders > 1)
        assert f"shared by {owners[shared]} requests" in point_at(page, shared)
        free = set(range(1, one["total_pages"] + 1)) - set(owners) - {1, 2, 3}
        cached = set(one.get("cached_pages", ()))
        assert "still in the prefix cache" in point_at(page, min(free & cached))
        assert point_at(page, min(free - cached)).endswith(": free")


def test_it_follows_the_engine(browser: Browser, serve_live: ServeLive, tmp_path: Path) -> None:
    engine = RehearsedEngine(0, 300, time.time() - 30)
    engine.run(30)
    write_snapshot(tmp_path, engine.snapshot())
    with browser.open(f"{serve_live(tmp_path).address}/growpage") as page:
        page.wait_for(SHOWN)
        assert page.evaluate("document.getElementById('tabs').hidden")
        first = engine.snapshot()
        kept = first["requests"][-1]["id"]
        letter = page.evaluate(f"identityOf(shownEngine(), '{kept}').letter")
        engine.run(1.5)
        write_snapshot(tmp_path, engine.snapshot())
        last = engine.snapshot()["decisions"][-1]
        assert last["time"] > first["decisions"][-1]["time"]
        page.wait_for(f"state.engines[0].time === {engine.time}")
        newest = page.text("#decisions tbody tr")
        arrow = f"{last['before']}\u200a→\u200a{last['after']}"
        assert last["action"] in newest and last["reason"] in newest
        assert (arrow if last["before"] != last["after"] else str(last["before"])) in newest
        if last["loss"] is not None:
            assert f"{100 * last['loss']:.2f}%" in newest
        # A request keeps its letter for as long as it runs.
        assert page.evaluate(f"identityOf(shownEngine(), '{kept}').letter") == letter
        page.click("#filters [data-filter=compress]")
        wanted = [d for d in engine.snapshot()["decisions"] if d["action"] == "compress"]
        assert page.count("#decisions tbody tr") == len(wanted)
        assert page.complaints() == []


def test_a_key_is_asked_for_and_stays_in_the_tab(
    browser: Browser, serve_live: ServeLive, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    with browser.open(f"{serve_live(tmp_path, 'open-sesame').address}/growpage") as page:
        form_is_shown = "!document.getElementById('key').hidden"
        page.wait_for(form_is_shown)
        assert page.evaluate("document.activeElement.id") == "key-input"
        assert page.count("#requests li") == 0
        page.type("wrong")
        page.press("Enter")
        page.wait_for("document.getElementById('key-error').textContent")
        assert page.text("#key-error") == "The server refused this key."
        assert page.evaluate("sessionStorage.length") == 0
        page.type("open-sesame")
        page.press("Enter")
        page.wait_for(SHOWN)
        assert page.evaluate("document.getElementById('key').hidden")
        assert page.evaluate("[localStorage.length, document.cookie, location.search]") == [
            0,
            "",
            "",
        ]
        assert all("open-sesame" not in request["url"] for request in page.requests())
        page.call("Page.reload")
        page.wait_for(f"document.readyState === 'complete' && {SHOWN}")
        page.click("#forget")
        page.wait_for(form_is_shown)
        assert page.evaluate("document.getElementById('engine').hidden")
        assert page.evaluate("sessionStorage.length") == 0
        # Chromium itself notes the answers 401, and nothing else went wrong.
        assert all("401" in complaint for complaint in page.complaints())


HOSTILE = (
    "<img src=x onerror=window.pwned=1>",
    '"><script>window.pwned=1</script>',
    "__proto__",
    "constructor",
    "\u202eesrever" + "x" * 300,
    "{{7*7}}${7*7}' style='position:fixed",
)


@pytest.mark.parametrize("width", [360, 1280])
def test_a_hostile_request_id_is_only_text(
    browser: Browser, serve_live: ServeLive, tmp_path: Path, width: int
) -> None:
    engine = RehearsedEngine(0, 300, time.time() - 30)
    engine.run(30)
    snapshot = engine.snapshot()
    names = dict(zip((r["id"] for r in snapshot["requests"]), HOSTILE, strict=False))
    for request in snapshot["requests"]:
        request["id"] = names.get(request["id"], request["id"])
        request["tenant"] = HOSTILE[0]
    for decision in snapshot["decisions"]:
        decision["request"] = names.get(decision["request"], decision["request"])
    write_snapshot(tmp_path, snapshot)
    with browser.open(f"{serve_live(tmp_path).address}/growpage", width=width) as page:
        page.wait_for(SHOWN)
        shown = page.evaluate(
            "[...document.querySelectorAll('.request .id')].map(e => e.textContent)"
        )
        assert set(HOSTILE) <= set(shown)
        number = next(n for n, owner in held_by(snapshot, 1).items() if owner == HOSTILE[0])
        assert HOSTILE[0] in point_at(page, number)
        page.click("[data-request='__proto__'] button")
        assert page.text(".request.selected .id") == "__proto__"
        assert page.evaluate("window.pwned") is None
        assert page.count("img") == 0 and page.count("script") == 1
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.complaints() == []


def test_old_data_are_called_old_and_an_idle_engine_is_not(
    browser: Browser, serve_live: ServeLive, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    busy, idle = snapshots[0], snapshots[1]
    busy["time"] -= 100
    idle["time"] -= 100
    idle["running"] = idle["waiting"] = 0
    idle["requests"] = []
    for snapshot in (busy, idle):
        write_snapshot(tmp_path, snapshot)
    (tmp_path / "engine-7.json").write_text("{")
    with browser.open(f"{serve_live(tmp_path).address}/growpage") as page:
        page.wait_for(SHOWN)
        assert page.text("#status") == "stale"
        assert "has work but has written nothing for 2 min" in page.text("#banner")
        assert "engine-7.json" in page.text("#banner")
        assert page.evaluate("document.title") == "stale · GrowPage"
        assert "stale" in page.text("#tab-0") and "stale" not in page.text("#tab-1")
        page.evaluate("document.getElementById('tab-1').click()")
        assert page.text("#status") == "idle"
        assert page.text("#requests-sum") == "none running"
        assert "Mode observe: nothing is evicted" in page.text("#banner")
        assert page.text("#decisions tbody tr td:nth-child(2)")[0] in "△▽✕"
        assert "would have done" in page.text("#decisions-note")


def test_a_server_that_is_gone_is_said_to_be_and_found_again(
    browser: Browser, serve_live: ServeLive, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    server = serve_live(tmp_path)
    with browser.open(f"{server.address}/growpage") as page:
        page.wait_for(SHOWN)
        server.stop()
        page.wait_for("document.getElementById('status').textContent === 'server gone'")
        assert re.match(r"The server has not answered for \d+ s\. This", page.text("#banner"))
        assert page.evaluate("document.body.classList.contains('old')")
        assert page.count("#requests li") == len(snapshots[0]["requests"])
        serve_live(None, port=server.port)
        page.wait_for("document.getElementById('status').textContent === 'no data'")
        assert "--growpage-live" in page.text("#banner")


def test_nothing_is_asked_for_while_paused_or_hidden(
    browser: Browser, serve_live: ServeLive, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    def asked(page: Page) -> int:
        return sum(request["url"].endswith("state.json") for request in page.requests())

    with browser.open(f"{serve_live(tmp_path).address}/growpage") as page:
        page.wait_for(SHOWN)
        page.click("#pause")
        assert page.text("#status") == "paused"
        before = asked(page)
        time.sleep(1.5)
        assert asked(page) == before
        page.click("#pause")
        page.wait_for("document.getElementById('status').textContent === 'live'")
        assert asked(page) > before
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        before = asked(page)
        time.sleep(1.5)
        assert asked(page) == before
        page.evaluate(
            "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))"
        )
        assert asked(page) == before + 1


def test_it_can_be_used_with_the_keyboard_alone(
    browser: Browser, serve_live: ServeLive, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    with browser.open(f"{serve_live(tmp_path).address}/growpage") as page:
        page.wait_for(SHOWN)
        page.evaluate("document.getElementById('tab-0').focus()")
        page.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == "tab-1"
        assert page.text("#mode") == "observe"
        page.press("ArrowLeft")
        assert page.text("#mode") == "enforce"
        page.evaluate("document.getElementById('map').focus()")
        page.press("ArrowRight")
        assert page.text("#readout").startswith("Page 1: ")
        page.press("ArrowDown")
        columns = page.evaluate("grid.columns")
        assert page.text("#readout").startswith(f"Page {columns + 1}: ")
        page.press("Enter")
        assert page.count(".request.selected") == 1
        page.press("Escape")
        assert page.count(".request.selected") == 0
        page.evaluate("document.querySelector('.request button').focus()")
        page.press("Enter")
        assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_a_screen_reader_has_a_name_for_everything(
    browser: Browser, serve_live: ServeLive, tmp_path: Path
) -> None:
    for index in (0, 1):
        engine = RehearsedEngine(index, 120, time.time() - 10, max_num_seqs=4)
        engine.run(10)
        write_snapshot(tmp_path, engine.snapshot())
    with browser.open(f"{serve_live(tmp_path).address}/growpage") as page:
        page.wait_for(SHOWN)
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        wanted = {"button", "tab", "combobox", "checkbox", "image", "region", "group"}
        named = [
            (node["role"]["value"], node["name"]["value"])
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in wanted
        ]
        assert {role for role, _ in named} == wanted
        assert all(name for _, name in named), named


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1440, False)])
def test_it_fits_and_can_be_read(
    browser: Browser,
    serve_live: ServeLive,
    snapshots: list[Snapshot],
    tmp_path: Path,
    width: int,
    dark: bool,
) -> None:
    address = f"{serve_live(tmp_path).address}/growpage"
    with browser.open(address, width=width, dark=dark) as page:
        page.wait_for(SHOWN)
        for tab in range(3):
            page.evaluate(f"document.getElementById('tab-{tab}').click()")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            inner, outer = page.evaluate(
                "(e => [e.scrollWidth, e.clientWidth])(document.querySelector('.scroll'))"
            )
            assert inner <= outer
        colour = {name: page.evaluate(f"colourOf('--{name}')") for name in COLOURS}
        assert (luminance(colour["background"]) < 0.1) is dark
        for text, back in READ_ON:
            assert contrast(colour[text], colour[back]) >= 4.5, (text, back)
        for at in range(8):
            owner = page.evaluate(f"colourOf('--owner-{at}')")
            assert contrast(owner, page.evaluate(f"inkOn('{owner}')")) >= 4.5, at
            assert contrast(owner, colour["free"]) >= 1.5, at


READ_ON = [
    *((text, back) for text in ("text", "muted") for back in ("background", "raised")),
    *((text, "raised") for text in ("link", "warn", "bad", "good")),
    *(("warn", "warn-back"), ("bad", "bad-back")),
]
COLOURS = {name for pair in READ_ON for name in pair} | {"free"}


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio: 4.5 is enough for text of any size."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)

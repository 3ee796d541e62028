"""The live page's content for a terminal, drawn with rich."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from growpage.telemetry.feed import age, is_stale
from growpage.telemetry.snapshot import DecisionState, LiveState, RequestState, Snapshot

OTHER_LINES = 15
"""Lines of a frame besides its rows of requests and decisions, at most, on a narrow terminal."""

BAR_CELLS = 24
ID_CELLS = 12
NARROW = 100
"""Columns of a terminal below which a table leaves out what matters least."""

_SIGNS = {"grow": "▲", "compress": "▼", "refuse": "✕"}
_STYLES = {"grow": "blue", "compress": "yellow", "refuse": "bold red"}


def frame(
    state: LiveState,
    snapshot: Snapshot,
    *,
    now: float,
    width: int,
    max_requests: int | None = None,
    max_decisions: int = 10,
) -> RenderableType:
    """One engine as it is in ``snapshot``, with a line on all engines where there are several.

    Args:
        state: what the server answered, of which ``snapshot`` is one engine.
        now: Unix time by the server's clock, from which ages are counted.
        width: columns of the terminal.
        max_requests: rows for requests; the rest is counted. None: all.
        max_decisions: rows for the last decisions.
    """
    parts: list[RenderableType] = [_title(snapshot, now)]
    if len(state["engines"]) > 1:
        parts.append(_engines(state["engines"], snapshot["engine"], now))
    if state["unreadable"]:
        parts.append(_line("unreadable", ", ".join(map(printable, state["unreadable"]))))
    parts += [
        _pool(snapshot),
        _queue(snapshot),
        _totals(snapshot),
        Text(),
        _requests(snapshot, width, max_requests),
        Text(),
        _decisions(snapshot["decisions"], width, max_decisions),
    ]
    return Group(*parts)


def rows_for(height: int, requests: int) -> tuple[int, int]:
    """How many requests and decisions fit into ``height`` lines; at least 3 of each."""
    room = max(6, height - OTHER_LINES)
    shown = min(requests, max(3, room * 3 // 5))
    return max(3, shown), max(3, room - max(3, shown))


def printable(text: str) -> str:
    """``text`` without what could steer a terminal: a client may choose its request's id."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _title(snapshot: Snapshot, now: float) -> Text:
    observed = snapshot["mode"] == "observe"
    words = Text.assemble(
        (printable(snapshot["model"]), "bold"),
        "  ",
        (f" {snapshot['mode'].upper()} ", "reverse" if not observed else "bold yellow"),
        f"  policy {snapshot['policy']}, score {snapshot['score']}, cache {snapshot['cache']}, "
        f"pages of {snapshot['block_size']} tokens  ",
    )
    seconds = age(snapshot, now)
    if is_stale(snapshot, now):
        words.append(f"stale: written {seconds:.0f} s ago", "bold red")
    else:
        words.append(f"{seconds:.0f} s ago", "dim")
    if observed:
        words.append("\nNothing is evicted: decisions are what enforce would have done.", "yellow")
    return words


def _engines(snapshots: Iterable[Snapshot], shown: int, now: float) -> Text:
    words = _line("engines")
    for snapshot in snapshots:
        chosen = snapshot["engine"] == shown
        words.append(
            f" {snapshot['engine']}: {_used(snapshot) / snapshot['total_pages']:.0%}, "
            f"{snapshot['waiting']} waiting{', stale' if is_stale(snapshot, now) else ''} ",
            "reverse" if chosen else "",
        )
        words.append(" ")
    return words


def _pool(snapshot: Snapshot) -> Text:
    owners: dict[int, int] = {}
    for request in snapshot["requests"]:
        for page in request["pages"]:
            owners[page] = owners.get(page, 0) + 1
    shared = sum(count > 1 for count in owners.values())
    used, total = _used(snapshot), snapshot["total_pages"]
    words = _line("pool", bar(used, total, total), f"  {used / total:.0%}")
    words.append(f"  {used:,} of {total:,} pages, {shared:,} shared")
    if "cached_pages" in snapshot:
        words.append(f", {len(snapshot['cached_pages']):,} free ones still cached")
    if (unlisted := used - len(owners)) > 0:
        words.append(f", {unlisted:,} held by no listed request")
    return words


def _queue(snapshot: Snapshot) -> Text:
    most = snapshot["max_num_seqs"]
    words = _line("running", bar(snapshot["running"], most, most))
    words.append(f"  {snapshot['running']} of {most}")
    words.append(f"  waiting {snapshot['waiting']}", "bold" if snapshot["waiting"] else "")
    return words


def _totals(snapshot: Snapshot) -> Text:
    totals = snapshot["totals"]
    logical = sum(request["logical"] for request in snapshot["requests"])
    kept = sum(request["kept"] for request in snapshot["requests"])
    ratio = f"{logical / kept:.2f}x" if kept else "-"

    def whole(name: str) -> str:
        return f"{totals[name]:,.0f}" if name in totals else "-"

    share = (
        f" ({totals['recomputed_share']:.1%} recomputed)" if "recomputed_share" in totals else ""
    )
    return _line(
        "totals",
        f"logical ÷ kept {ratio}, {whole('compressions')} compressions, "
        f"{whole('growths')} growths ({whole('growths_refused')} refused), "
        f"{whole('evicted_tokens')} tokens evicted, {whole('reclaimed_pages')} pages reclaimed, "
        f"{whole('preemptions')} preemptions{share}",
    )


def _requests(snapshot: Snapshot, width: int, limit: int | None) -> RenderableType:
    requests = snapshot["requests"]
    shown = sorted(requests, key=lambda request: -len(request["pages"]))[:limit]
    left_out = len(requests) - len(shown)
    wide = width >= NARROW
    table = _table(
        f"Requests by pages{f', {left_out} more not shown' if left_out else ''}",
        *("request", *(("tenant",) if wide else ()), "pages, and those uncompressed"),
        right=("held", "ratio", "kept", "logical", *(("prompt", "compressed") if wide else ())),
    )
    size = snapshot["block_size"]
    tallest = max((uncompressed_pages(request, size) for request in shown), default=1)
    for request in shown:
        held, full = len(request["pages"]), uncompressed_pages(request, size)
        table.add_row(
            _short(request["id"]),
            *((Text(printable(request["tenant"] or "-")),) if wide else ()),
            Text(bar(held, full, tallest)),
            f"{held}/{full}",
            f"{request['logical'] / max(1, request['kept']):.2f}x",
            f"{request['kept']:,}",
            f"{request['logical']:,}",
            *((f"{request['prompt']:,}", f"{request['compressions']:,}x") if wide else ()),
        )
    return table if shown else Text("No request is running.", "dim")


def _decisions(decisions: Sequence[DecisionState], width: int, limit: int) -> RenderableType:
    if not decisions:
        return Text("No decision yet.", "dim")
    table = _table(
        "Last decisions",
        *("time", "decision", "request", "reason"),
        right=("pages", "Δ", "loss", *(("evicted",) if width >= NARROW else ())),
    )
    for decision in reversed(decisions[-limit:]):
        action = decision["action"]
        would = "would " if decision["mode"] == "observe" else ""
        before, after = decision["before"], decision["after"]
        delta, loss = decision["delta"], decision["loss"]
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(decision["time"])),
            Text(f"{_SIGNS[action]} {would}{action}", _STYLES[action]),
            _short(decision["request"]),
            Text(printable(decision["reason"])),
            f"{before}" if before == after else f"{before} → {after}",
            "-" if delta is None else f"{delta:+.1f}",
            "-" if loss is None else f"{loss:.2%}",
            *((f"{decision['evicted'] or '-'}",) if width >= NARROW else ()),
        )
    return table


def bar(filled: int, length: int, scale: int) -> str:
    """``filled`` of ``length`` as solid of all cells, :data:`BAR_CELLS` of which are ``scale``."""
    cells = _cells(length, scale)
    solid = min(cells, _cells(filled, scale))
    return "█" * solid + "░" * (cells - solid)


def uncompressed_pages(request: RequestState, block_size: int) -> int:
    """Pages that the request would hold had nothing been evicted."""
    return max(len(request["pages"]), -(-request["logical"] // block_size))


def _cells(value: int, scale: int) -> int:
    # Something is never shown as nothing, nor a part as all of it.
    cells = round(BAR_CELLS * value / max(1, scale))
    if value > 0:
        cells = max(1, cells)
    return min(cells, BAR_CELLS - 1) if value < scale else BAR_CELLS


def _used(snapshot: Snapshot) -> int:
    return snapshot["total_pages"] - snapshot["free_pages"]


def _short(request: str) -> Text:
    """The end of an id, which is what tells ids apart."""
    text = printable(request)
    return Text(text if len(text) <= ID_CELLS else f"…{text[1 - ID_CELLS :]}")


def _line(name: str, *parts: str) -> Text:
    return Text.assemble((f"{name:<9}", "dim"), *parts)


def _table(title: str, *left: str, right: Sequence[str]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name in left:
        table.add_column(name, header_style="dim", no_wrap=True)
    for name in right:
        table.add_column(name, header_style="dim", justify="right", no_wrap=True)
    return table

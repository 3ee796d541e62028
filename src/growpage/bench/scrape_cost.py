"""What it costs to be scraped every second: throughput with and without, in alternation.

``python -m growpage.bench.scrape_cost`` serves the default model to a fixed number of clients, and
scrapes ``/metrics`` once a second in every other window of time.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated

import httpx
import typer

from growpage.bench.pool import page_bytes
from growpage.bench.server import Server, serve
from growpage.bench.soak import BLOCK
from growpage.models import smollm2

SCRAPE_EVERY_S = 1.0
RESAMPLES = 10_000


@dataclass(frozen=True)
class Pair:
    """Tokens a second in two neighbouring windows."""

    quiet: float
    scraped: float

    @property
    def ratio(self) -> float:
        """Throughput while scraped, over that without."""
        return self.scraped / self.quiet


class Clients:
    """Clients that stream one answer after the other, and count its tokens."""

    def __init__(self, server: Server, number: int) -> None:
        self.tokens = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._server = server
        self._threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(number)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, seed: int) -> None:
        draw = random.Random(seed)
        with httpx.Client(base_url=self._server.address, timeout=300) as http:
            while not self._over.is_set():
                body = {
                    "model": smollm2.DEFAULT_MODEL_NAME,
                    "prompt": [draw.randrange(1000, 20000) for _ in range(32)],
                    "max_tokens": 400,
                    "ignore_eos": True,
                    "stream": True,
                }
                with suppress(httpx.TransportError):
                    self._stream(http, body)

    def _stream(self, http: httpx.Client, body: dict[str, object]) -> None:
        with http.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    with self._lock:
                        self.tokens += 1
                if self._over.is_set():
                    return


def window(server: Server, clients: Clients, seconds: float, *, scrape: bool) -> float:
    """Tokens a second over one window of time."""
    start, before = time.monotonic(), clients.tokens
    for tick in count(1):
        time.sleep(max(start + min(tick * SCRAPE_EVERY_S, seconds) - time.monotonic(), 0))
        if time.monotonic() - start >= seconds:
            break
        if scrape:
            httpx.get(f"{server.address}/metrics", timeout=30).raise_for_status()
    return (clients.tokens - before) / (time.monotonic() - start)


def interval(ratios: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95% bootstrap interval of the mean of ``ratios``."""
    draw = random.Random(seed)
    means = sorted(statistics.fmean(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def cpu_per_scrape(server: Server, scrapes: int = 100) -> float:
    """CPU seconds of the whole server for one scrape, while it has nothing else to do."""
    processes = [server.process, *server.process.children(recursive=True)]

    def spent() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    def idle(seconds: float) -> float:
        before = spent()
        time.sleep(seconds)
        return (spent() - before) / seconds

    rest = idle(5)
    start, before = time.monotonic(), spent()
    for _ in range(scrapes):
        httpx.get(f"{server.address}/metrics", timeout=30).raise_for_status()
    return (spent() - before - rest * (time.monotonic() - start)) / scrapes


def main(
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of windows.")] = 12,
    seconds: Annotated[float, typer.Option(min=2, help="Length of a window.")] = 12,
    clients: Annotated[int, typer.Option(min=1, help="Clients at once.")] = 8,
) -> None:
    """Compare throughput with and without a scrape every second."""
    pool = 100 * page_bytes(smollm2.ensure(), BLOCK)
    flags = [
        *("--growpage-policy", "elastic", "--block-size", str(BLOCK), "--max-model-len", "512"),
        *("--kv-cache-memory-bytes", str(pool), "--max-num-seqs", str(clients)),
        *("--enforce-eager", "--disable-uvicorn-access-log"),
    ]
    measured: list[Pair] = []
    with serve(flags, Path(gettempdir(), "growpage-scrape-cost.log")) as server:
        with Clients(server, clients) as load:
            window(server, load, seconds, scrape=False)  # warm up
            for index in range(pairs):
                order = (False, True) if index % 2 else (True, False)
                rates = {on: window(server, load, seconds, scrape=on) for on in order}
                measured.append(Pair(quiet=rates[False], scraped=rates[True]))
                typer.echo(f"{rates[False]:.1f} tokens/s, scraped {rates[True]:.1f}")
        cost = cpu_per_scrape(server)
    ratios = [pair.ratio for pair in measured]
    low, high = interval(ratios)
    typer.echo(
        f"throughput while scraped every second: {statistics.fmean(ratios):.4f} of that without, "
        f"95% interval {low:.4f} to {high:.4f}; {cost * 1000:.1f} ms of CPU a scrape"
    )


if __name__ == "__main__":
    typer.run(main)

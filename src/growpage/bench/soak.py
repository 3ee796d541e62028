"""A soak of the real server: many clients, unequal requests, some that hang up, a tight pool.

``python -m growpage.bench.soak`` runs it, prints what happened, and fails if a request did not end
as it must, the server did not come to rest, or a process kept growing.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from growpage.bench.machine import fast_dtype
from growpage.bench.pool import page_bytes
from growpage.bench.server import Server, parse_metrics, serve
from growpage.models import smollm2

BLOCK = 32
POOL_PAGES = 32
MAX_MODEL_LEN = 1536

ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}
"""oneDNN keeps a compiled kernel for every batch length that it has seen, up to 1,024. Plain
vLLM's worker grows by 480 MiB over 350 prompts of different lengths; a leak could hide in that."""

ALLOWED_GROWTH = 24 * 2**20
"""Bytes by which a process's memory may grow from the second to the last quarter of a soak.

Allocators keep what a new peak of concurrent requests once took, and the peaks come at random: 5 to
14 MiB were seen in the worker in short soaks, which then level off. A leak shows all the same in a
long one: the query summaries of one request are 0.14 MB, so 175 that leave theirs behind are too
many. Pages are counted exactly, by ``/metrics``.
"""

REST_LIMIT_S = 30.0
"""Seconds after the last answer in which the server must have nothing left to do."""

SAMPLE_EVERY_S = 1.0

AFRESH = httpx.Limits(max_keepalive_connections=0)
"""A connection for each request: hanging up closes it, and the server closes idle ones just when
they are to be used again."""

LOG = Path(gettempdir(), "growpage-soak.log")

AT_REST = {
    "vllm:num_requests_running": 0.0,
    "vllm:num_requests_waiting": 0.0,
    # Pages that only the prefix cache knows count as free.
    "vllm:kv_cache_usage_perc": 0.0,
}


class Kind(StrEnum):
    """What a client does."""

    WHOLE = "whole answer"
    STREAM = "streamed"
    HANG_UP = "hangs up in mid-stream"
    GIVE_UP = "gives up waiting"
    OVER_LENGTH = "prompt over max_model_len"
    OVER_POOL = "prompt over the pool"


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    ABORTED = "aborted by its client"
    REFUSED = "refused"
    FAILED = "failed"
    HUNG = "hung"


EXPECTED = {
    Kind.WHOLE: {Outcome.FINISHED},
    Kind.STREAM: {Outcome.FINISHED},
    # A server may be quicker than its client's patience.
    Kind.HANG_UP: {Outcome.ABORTED, Outcome.FINISHED},
    Kind.GIVE_UP: {Outcome.ABORTED, Outcome.FINISHED},
    Kind.OVER_LENGTH: {Outcome.REFUSED},
    Kind.OVER_POOL: {Outcome.REFUSED},
}

SHARES = {
    Kind.WHOLE: 40,
    Kind.STREAM: 40,
    Kind.HANG_UP: 12,
    Kind.GIVE_UP: 4,
    Kind.OVER_LENGTH: 2,
    Kind.OVER_POOL: 2,
}
"""Of a hundred requests."""


@dataclass(frozen=True)
class Load:
    """How much, by whom, until when."""

    requests: int = 2000
    seconds: float = 900.0
    """No request is started after this."""
    clients: int = 16
    max_new_tokens: int = 160
    request_limit_s: float = 180.0
    """A request that takes longer hangs."""
    seed: int = 0


@dataclass(frozen=True)
class SoakRequest:
    """One request, and what its client does with it."""

    number: int
    kind: Kind
    prompt: list[int]
    max_tokens: int
    patience: float
    """Of a client that leaves: events of the stream that it reads, or seconds that it waits."""


@dataclass(frozen=True)
class Memory:
    """Resident bytes of one process over a soak."""

    start: float
    second_quarter: float
    last_quarter: float
    end: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Memory:
        """Samples that are evenly spaced in time."""
        quarter = len(samples) // 4
        return cls(
            start=samples[0],
            second_quarter=median(samples[quarter : 2 * quarter] or samples),
            last_quarter=median(samples[3 * quarter :]),
            end=samples[-1],
        )

    @property
    def growth(self) -> float:
        """From the median of the second quarter to that of the last."""
        return self.last_quarter - self.second_quarter


@dataclass
class SoakReport:
    """What happened."""

    seconds: float = 0.0
    ended: Counter[tuple[Kind, Outcome]] = field(default_factory=Counter)
    surprises: list[str] = field(default_factory=list)
    """Requests that did not end as they must."""
    peak_usage: float = 0.0
    """Largest share of the pool that was seen in use."""
    counted: dict[str, float] = field(default_factory=dict)
    """Increase of each of vLLM's counters."""
    memory: dict[str, Memory] = field(default_factory=dict)
    unrest: dict[str, float] = field(default_factory=dict)
    """Metrics of :data:`AT_REST` that are not so after the soak."""

    @property
    def requests(self) -> int:
        """Requests that ended, in whatever way."""
        return self.ended.total()

    @property
    def problems(self) -> list[str]:
        """Everything that must not be; none after a good soak."""
        found = list(self.surprises)
        found += [f"{name} is {value:g} at rest" for name, value in self.unrest.items()]
        found += [
            f"{name} grew by {memory.growth / 2**20:.1f} MiB, more than the "
            f"{ALLOWED_GROWTH / 2**20:g} that are allowed"
            for name, memory in self.memory.items()
            if memory.growth > ALLOWED_GROWTH
        ]
        return found

    def tables(self) -> Iterator[Table]:
        """For a terminal."""
        requests = Table("client", "its request", "number", title=f"{self.requests} requests")
        for (kind, outcome), number in sorted(self.ended.items()):
            requests.add_row(kind, outcome, str(number))
        yield requests
        counted = self.counted
        tokens = counted.get("vllm:generation_tokens_total", 0)
        hits = counted.get("vllm:prefix_cache_hits_total", 0)
        figures = Table("figure", "value", title=f"{self.seconds:.0f} seconds")
        figures.add_row("generated tokens", f"{tokens:.0f}")
        figures.add_row("tokens/s", f"{tokens / max(self.seconds, 1e-9):.1f}")
        figures.add_row("prompt tokens", f"{counted.get('vllm:prompt_tokens_total', 0):.0f}")
        figures.add_row("of them from the prefix cache", f"{hits:.0f}")
        figures.add_row("preemptions", f"{counted.get('vllm:num_preemptions_total', 0):.0f}")
        figures.add_row("peak use of the pool", f"{self.peak_usage:.0%}")
        yield figures
        memory = Table("process", "start", "2nd quarter", "last quarter", "end", "growth")
        memory.title = "resident memory, MiB"
        for name, each in self.memory.items():
            sizes = (each.start, each.second_quarter, each.last_quarter, each.end, each.growth)
            memory.add_row(name, *(f"{size / 2**20:.1f}" for size in sizes))
        yield memory


def make_requests(load: Load) -> Iterator[SoakRequest]:
    """The requests of a load, without end; the same for the same seed."""
    draw = random.Random(load.seed)
    # Token ids rather than text, so that lengths are exact. The first ones are control tokens.
    prefixes = [_tokens(draw, 3 * BLOCK) for _ in range(4)]
    for number in count():
        (kind,) = draw.choices(list(SHARES), weights=list(SHARES.values()))
        match kind:
            case Kind.OVER_LENGTH:
                prompt = _tokens(draw, MAX_MODEL_LEN + 1)
            case Kind.OVER_POOL:
                prompt = _tokens(draw, POOL_PAGES * BLOCK + 1 + draw.randrange(200))
            case _:
                shared = draw.choice(prefixes) if draw.random() < 0.5 else []
                prompt = shared + _tokens(draw, draw.randint(4, 120))
        patience = draw.uniform(0.1, 2.0) if kind is Kind.GIVE_UP else draw.randint(1, 20)
        long = kind in (Kind.HANG_UP, Kind.GIVE_UP)
        tokens = load.max_new_tokens if long else draw.randint(4, load.max_new_tokens)
        yield SoakRequest(number, kind, prompt, tokens, patience)


def server_flags() -> list[str]:
    """Of ``growpage serve``: a pool of 1,024 tokens, for up to 16 requests at once and for prompts
    of up to 1,536."""
    dtype = fast_dtype()
    page = page_bytes(smollm2.ensure(), BLOCK, dtype=dtype)
    return [
        *("--block-size", str(BLOCK), "--dtype", dtype),
        # vLLM keeps one page more, its null block.
        *("--kv-cache-memory-bytes", str(page * (POOL_PAGES + 1))),
        *("--max-model-len", str(MAX_MODEL_LEN)),
        *("--max-num-seqs", "16", "--enforce-eager", "--disable-uvicorn-access-log"),
    ]


async def soak(server: Server, load: Load) -> SoakReport:
    """Put a server under load until the requests or the time are used up, then see it come to rest.

    The server must have been started with :func:`server_flags`, or a tighter pool.
    """
    report = SoakReport()
    before = server.metrics()
    samples: dict[str, list[float]] = {}
    begin = time.monotonic()
    watcher = asyncio.create_task(_watch(server, samples, report))
    try:
        await _run_clients(server.address, load, begin, report)
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher  # raises what ended it early
    report.seconds = time.monotonic() - begin
    await _run_last_request(server.address, load, report)
    after = await _rest(server, report)
    report.counted = {
        name: value - before.get(name, 0.0)
        for name, value in after.items()
        if name.startswith("vllm:") and name.endswith("_total")
    }
    # Helpers that come and go within a soak have no quarters to compare.
    longest = max(map(len, samples.values()), default=0)
    report.memory = {
        name: Memory.of(sizes) for name, sizes in samples.items() if len(sizes) == longest
    }
    return report


async def _run_clients(address: str, load: Load, begin: float, report: SoakReport) -> None:
    requests = make_requests(load)

    async def client() -> None:
        async with httpx.AsyncClient(base_url=address, timeout=None, limits=AFRESH) as http:
            while time.monotonic() - begin < load.seconds:
                request = next(requests)
                if request.number >= load.requests:
                    return
                await _run(http, request, load.request_limit_s, report)

    async with asyncio.TaskGroup() as clients:
        for _ in range(load.clients):
            clients.create_task(client())


async def _run_last_request(address: str, load: Load, report: SoakReport) -> None:
    """An ordinary request, after all others."""
    prompt = _tokens(random.Random(load.seed + 1), 20)
    last = SoakRequest(load.requests, Kind.WHOLE, prompt, load.max_new_tokens, 0)
    async with httpx.AsyncClient(base_url=address, timeout=None) as http:
        await _run(http, last, load.request_limit_s, report)


async def _run(
    http: httpx.AsyncClient, request: SoakRequest, limit_s: float, report: SoakReport
) -> None:
    """Send a request, do with it what its client does, and take down how it ended."""
    detail = ""
    try:
        async with asyncio.timeout(limit_s):
            outcome, detail = await (_stream if _streams(request) else _ask)(http, request)
    except TimeoutError:
        outcome, detail = Outcome.HUNG, f"no end after {limit_s:g} seconds"
    except httpx.HTTPError as error:
        outcome, detail = Outcome.FAILED, repr(error)
    report.ended[request.kind, outcome] += 1
    if outcome not in EXPECTED[request.kind]:
        what = f"request {request.number} ({request.kind}, {len(request.prompt)} prompt tokens)"
        report.surprises.append(f"{what} {outcome}: {detail}")


def _streams(request: SoakRequest) -> bool:
    """Half of the over-long prompts are streamed too."""
    return request.kind in (Kind.STREAM, Kind.HANG_UP) or (
        request.kind in (Kind.OVER_LENGTH, Kind.OVER_POOL) and request.number % 2 == 0
    )


def _body(request: SoakRequest, stream: bool) -> dict[str, Any]:
    return {
        "model": smollm2.DEFAULT_MODEL_NAME,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": 0.7,
        "seed": request.number,
        "ignore_eos": True,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    }


async def _ask(http: httpx.AsyncClient, request: SoakRequest) -> tuple[Outcome, str]:
    patience = request.patience if request.kind is Kind.GIVE_UP else None
    timeout = httpx.Timeout(None, read=patience)
    try:
        body = _body(request, stream=False)
        answer = await http.post("/v1/completions", json=body, timeout=timeout)
    except httpx.ReadTimeout:
        return Outcome.ABORTED, ""
    if answer.is_error:
        return _refusal(answer.text)
    return _check_usage(request, answer.json()["usage"])


async def _stream(http: httpx.AsyncClient, request: SoakRequest) -> tuple[Outcome, str]:
    usage: Mapping[str, int] | None = None
    events = 0
    async with http.stream("POST", "/v1/completions", json=_body(request, stream=True)) as answer:
        if answer.is_error:
            return _refusal((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return _refusal(line)
            usage = event.get("usage") or usage
            events += 1
            if request.kind is Kind.HANG_UP and events >= request.patience:
                return Outcome.ABORTED, ""
    if usage is None:
        return Outcome.FAILED, f"the stream broke off after {events} events"
    return _check_usage(request, usage)


def _refusal(text: str) -> tuple[Outcome, str]:
    return Outcome.REFUSED, text[:300]


def _check_usage(request: SoakRequest, usage: Mapping[str, int]) -> tuple[Outcome, str]:
    """An answer must have all its tokens: none ends before its time."""
    tokens = usage["completion_tokens"]
    if tokens == request.max_tokens:
        return Outcome.FINISHED, ""
    return Outcome.FAILED, f"{tokens} of {request.max_tokens} tokens"


async def _watch(server: Server, samples: dict[str, list[float]], report: SoakReport) -> None:
    """Sample the memory of the server's processes and the use of its pool, until cancelled."""
    async with httpx.AsyncClient(base_url=server.address, timeout=30, limits=AFRESH) as http:
        while True:
            for name, size in server.resident_bytes().items():
                samples.setdefault(name, []).append(size)
            metrics = parse_metrics((await http.get("/metrics")).text)
            report.peak_usage = max(report.peak_usage, metrics["vllm:kv_cache_usage_perc"])
            await asyncio.sleep(SAMPLE_EVERY_S)


async def _rest(server: Server, report: SoakReport) -> Mapping[str, float]:
    """Wait for the server to be at rest; the metrics at the end."""
    deadline = time.monotonic() + REST_LIMIT_S
    while True:
        metrics = server.metrics()
        unrest = {name: metrics[name] for name, rest in AT_REST.items() if metrics[name] != rest}
        if not unrest or time.monotonic() > deadline:
            report.unrest = unrest
            return metrics
        await asyncio.sleep(0.5)


def _tokens(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(1000, 20000) for _ in range(length)]


def main(
    more_flags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FLAGS",
            help="More flags of `growpage serve`, after `--`. Not --dtype: the pool depends on it.",
        ),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests to send.")] = Load.requests,
    seconds: Annotated[float, typer.Option(help="No request starts after these.")] = Load.seconds,
    clients: Annotated[int, typer.Option(min=1, help="Clients at once.")] = Load.clients,
    max_new_tokens: Annotated[
        int, typer.Option(min=4, help="Of the longest answer; 2,000 of 64 fit into 15 minutes.")
    ] = 64,
    policy: Annotated[str, typer.Option(help="Policy of the server.")] = "elastic",
    seed: Annotated[int, typer.Option(help="Of the requests.")] = Load.seed,
    log: Annotated[Path, typer.Option(help="File for the server's output.")] = LOG,
) -> None:
    """Soak a server of the default model: many clients, some of which hang up, and a tight pool."""
    # As Ctrl-C does: the server is stopped before we end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    load = Load(
        requests=requests,
        seconds=seconds,
        clients=clients,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    flags = ("--growpage-policy", policy, *server_flags(), *(more_flags or ()))
    with serve(flags, log, ENVIRONMENT) as server:
        report = asyncio.run(soak(server, load))
    console = Console()
    for table in report.tables():
        console.print(table)
    for problem in report.problems:
        console.print(f"Problem: {problem}", markup=False)
    raise typer.Exit(1 if report.problems else 0)


if __name__ == "__main__":
    typer.run(main)

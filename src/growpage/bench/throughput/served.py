"""A server under a load: streamed completions, and what ``/metrics`` says meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

import httpx2

from growpage.bench.launch import RunError
from growpage.bench.results import Progress
from growpage.bench.throughput.exposition import Reading, figures
from growpage.bench.throughput.latency import Trace
from growpage.bench.throughput.load import ClosedLoop, LoadRequest, OpenLoop
from growpage.bench.throughput.protocol import Measurement

SAMPLE_EVERY_S = 1.0
"""Seconds between two looks at ``/metrics``."""

PROGRESS_EVERY_S = 0.5

OnProgress = Callable[[Progress], None]


@dataclass
class _Answer:
    """An answer as it arrives."""

    sent_s: float
    events: list[tuple[float, int]] = field(default_factory=list)
    prompt_tokens: int = 0
    error: str | None = None


class ServedEngine:
    """A contender behind an address.

    Args:
        address: of the server, without a path.
        model: the name that it serves its model under.
        requests: those of every load.
    """

    def __init__(self, address: str, model: str, requests: Sequence[LoadRequest]) -> None:
        self._address = address
        self._model = model
        self._requests = requests

    def serve(self, load: ClosedLoop | OpenLoop, on_progress: OnProgress) -> Measurement:
        """Serve all requests at this pace.

        Raises:
            RunError: the server's metrics cannot be read.
        """
        try:
            return asyncio.run(self._serve(load, on_progress))
        except httpx2.HTTPError as error:
            raise RunError(f"cannot read {self._address}/metrics: {error!r}") from error

    def warm_up(self) -> None:
        """Let it answer every prompt with a few tokens.

        Raises:
            RunError: it refuses one.
        """
        short = [each.model_copy(update={"output_tokens": 1}) for each in self._requests]
        load = ClosedLoop(clients=8)
        measurement = ServedEngine(self._address, self._model, short).serve(load, lambda _: None)
        for trace in measurement.traces:
            if trace.failure is not None:
                raise RunError(f"{self._address} does not answer: {trace.failure}")

    async def _serve(self, load: ClosedLoop | OpenLoop, on_progress: OnProgress) -> Measurement:
        answers: dict[str, _Answer] = {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx2.AsyncClient(base_url=self._address, timeout=None, limits=limits) as http:
            before = await _read(http)
            samples: list[Reading] = []
            watcher = asyncio.create_task(_watch(http, samples))
            reporter = asyncio.create_task(self._report(answers, on_progress))
            begin = perf_counter()
            if isinstance(load, ClosedLoop):
                await self._closed(http, load.clients, begin, answers)
            else:
                await self._open(http, load, begin, answers)
            wall_s = perf_counter() - begin
            for task in (watcher, reporter):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task  # raises what ended it early
            after = await _read(http)
        return Measurement(
            wall_s=wall_s,
            traces=[self._trace(each, answers[each.id]) for each in self._requests],
            engine=figures(before, after, samples),
        )

    async def _closed(
        self, http: httpx2.AsyncClient, clients: int, begin: float, answers: dict[str, _Answer]
    ) -> None:
        """Each client takes the next request as soon as its last one is answered."""
        queue = iter(self._requests)

        async def client() -> None:
            for request in queue:
                answer = answers[request.id] = _Answer(perf_counter() - begin)
                await self._ask(http, request, answer, begin)

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())

    async def _open(
        self, http: httpx2.AsyncClient, load: OpenLoop, begin: float, answers: dict[str, _Answer]
    ) -> None:
        """Each request is sent when it is due."""
        async with asyncio.TaskGroup() as group:
            for request, due in zip(
                self._requests, load.arrivals(len(self._requests)), strict=True
            ):
                await asyncio.sleep(due - (perf_counter() - begin))
                answer = answers[request.id] = _Answer(due)
                group.create_task(self._ask(http, request, answer, begin))

    async def _ask(
        self, http: httpx2.AsyncClient, request: LoadRequest, answer: _Answer, begin: float
    ) -> None:
        """Stream one answer; a failure is noted in it."""
        body = {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with http.stream("POST", "/v1/completions", json=body) as response:
                if response.is_error:
                    text = (await response.aread()).decode(errors="replace")
                    answer.error = f"HTTP {response.status_code}: {text[:300]}"
                    return
                async for event in _events(response):
                    _take(event, answer, perf_counter() - begin)
        except httpx2.HTTPError as error:
            answer.error = repr(error)

    def _trace(self, request: LoadRequest, answer: _Answer) -> Trace:
        return Trace(
            request=request.id,
            prompt_tokens=answer.prompt_tokens,
            wanted_tokens=request.output_tokens,
            sent_s=answer.sent_s,
            events=answer.events,
            error=answer.error,
        )

    @staticmethod
    async def _report(answers: dict[str, _Answer], on_progress: OnProgress) -> None:
        """Say how far it is, until cancelled."""
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            ended = sum(bool(each.prompt_tokens or each.error) for each in answers.values())
            tokens = sum(len(each.events) for each in answers.values())
            on_progress(Progress(finished=ended, tokens=tokens))


async def _events(response: httpx2.Response) -> AsyncIterator[str]:
    """The data of server-sent events."""
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield line.removeprefix("data: ")


def _take(data: str, answer: _Answer, now: float) -> None:
    """Note one event: a token, as ``vllm bench serve`` counts it, or the usage that comes last."""
    event = json.loads(data)
    if "error" in event:
        answer.error = data[:300]
    elif event.get("choices"):
        answer.events.append((now, 1))
    elif usage := event.get("usage"):
        answer.prompt_tokens = usage["prompt_tokens"]
        # An event may bring several tokens; only their sum is told.
        missing = usage["completion_tokens"] - len(answer.events)
        if missing and answer.events:
            at, tokens = answer.events[-1]
            answer.events[-1] = (at, tokens + missing)


async def _read(http: httpx2.AsyncClient) -> Reading:
    response = await http.get("/metrics", timeout=30)
    return Reading.of(response.raise_for_status().text)


async def _watch(http: httpx2.AsyncClient, samples: list[Reading]) -> None:
    """Read the metrics again and again, until cancelled."""
    while True:
        samples.append(await _read(http))
        await asyncio.sleep(SAMPLE_EVERY_S)

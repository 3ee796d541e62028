"""What a decision costs the worker, phase by phase, without an engine.

``python -m growpage.bench.decision_cost`` builds a budgeter over random pages of a real model's
shape, in the layout of this machine's attention kernel, and times what it does in a step: capture
for 16 requests, and measuring and compacting one request of several lengths.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
import typer

from growpage.budget.config import BudgetConfig
from growpage.budget.rope import Rotary
from growpage.engine.budgeter import AttentionShape, Budgeter, StepRows
from growpage.engine.cpu_layout import EIGHT_BIT_DTYPES, cpu_page_layout
from growpage.engine.messages import CompactionPlan
from growpage.engine.parallel import TensorParallel
from growpage.kvcache.eight_bit import EightBitFloats
from growpage.kvcache.paged import PagedCache

REQUESTS = 16
PAGE = 32
POSITIONS = 16384


@dataclass(frozen=True)
class Shape:
    """A model's attention."""

    name: str
    layers: int
    query_heads: int
    kv_heads: int
    head_size: int


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("SmolLM2-135M", 30, 9, 3, 64),
        Shape("Qwen2.5-1.5B", 28, 12, 2, 128),
    )
}


@dataclass(frozen=True)
class Timing:
    """Milliseconds of repeated runs."""

    low: float
    median: float
    high: float
    cpu: float
    """Median of what all threads spent, which a busy machine hardly changes."""

    def __str__(self) -> str:
        quartiles = f"(quartiles {self.low:.2f} to {self.high:.2f}; CPU {self.cpu:.2f})"
        return f"{self.median:7.2f} ms  {quartiles}"


def timed(
    action: Callable[[], object], repeats: int, before: Callable[[], object] = lambda: None
) -> Timing:
    """Time ``action``, after two runs that do not count; ``before`` each does not count either."""
    wall, cpu = [], []
    for _ in range(repeats + 2):
        before()
        start, spent = time.perf_counter(), time.process_time()
        action()
        wall.append(1000 * (time.perf_counter() - start))
        cpu.append(1000 * (time.process_time() - spent))
    low, median, high = statistics.quantiles(wall[2:], n=4)
    return Timing(low, median, high, statistics.median(cpu[2:]))


class Bench:
    """A budgeter with :data:`REQUESTS` requests that have all decoded for a while.

    Args:
        shape: of the model.
        config: the budget.
        pages: in the pool.
        dtype: of the model.
        cache_dtype: vLLM's name for what is stored of keys and values.
    """

    def __init__(
        self, shape: Shape, config: BudgetConfig, pages: int, dtype: torch.dtype, cache_dtype: str
    ) -> None:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        self.shape = shape
        rates = 1e4 ** -torch.linspace(0, 1, 32, dtype=torch.double)
        angles = torch.outer(torch.arange(POSITIONS).double(), rates)
        half = angles.repeat(1, shape.head_size // 64)
        self.budgeter = Budgeter(
            config,
            AttentionShape(shape.layers, shape.query_heads, shape.head_size, shape.head_size**-0.5),
            Rotary(torch.cat((half.cos(), half.sin()), dim=-1).to(dtype)),
            REQUESTS,
            dtype=dtype,
            device=torch.device("cpu"),
            workers=TensorParallel(),
        )
        isa = _get_attn_isa(dtype, PAGE, shape.head_size)
        self.fresh = torch.randn(
            shape.layers, pages, shape.kv_heads, 2, PAGE * shape.head_size, dtype=dtype
        )
        codes = None
        if stored := EIGHT_BIT_DTYPES.get(cache_dtype):
            self.fresh = self.fresh.to(stored).view(torch.uint8)
            codes = EightBitFloats(stored, [1.0] * shape.layers, [1.0] * shape.layers)
        self.budgeter.cache = PagedCache(
            self.fresh.clone(),
            cpu_page_layout(isa, PAGE, shape.head_size, dtype, cache_dtype),
            shape.head_size,
            codes,
        )
        self.names = [f"r{index}" for index in range(REQUESTS)]
        self.budgeter.admit(self.names)
        self.taps = [self.budgeter.tap(layer) for layer in range(shape.layers)]
        self.queries = torch.randn(
            shape.layers, REQUESTS, shape.query_heads, shape.head_size, dtype=dtype
        )
        self.position = PAGE
        for _ in range(2 * config.window + config.warmup):
            self.capture()
            self.take_in()

    def capture(self) -> None:
        """Everything between a step's batch and the end of its forward pass."""
        self.rows = StepRows(
            request_ids=self.names,
            start=np.full(REQUESTS, self.position),
            tokens=np.ones(REQUESTS, dtype=np.int64),
            prompt=np.full(REQUESTS, PAGE),
        )
        self.budgeter.before_forward(self.rows)
        for tap, queries in zip(self.taps, self.queries, strict=True):
            tap.record(queries)
        self.position += 1

    def take_in(self) -> None:
        """What follows the forward pass of every step."""
        self.budgeter.after_forward(self.rows)

    def measure(self, tokens: int) -> None:
        """One request's demand."""
        table = torch.arange(-(-tokens // PAGE))
        report = self.budgeter.measure(self.names[0], 0, self.position, tokens, table)
        assert report is not None
        report.settle()

    def refill(self) -> None:
        """Undo what compressions have moved: no two tokens are alike, as in a model's cache."""
        assert self.budgeter.cache is not None
        self.budgeter.cache.pages.copy_(self.fresh)

    def compact(self, tokens: int) -> None:
        """Evict a page of one request, as at every boundary."""
        pages = tuple(range(tokens // PAGE))
        plan = CompactionPlan(
            request_id=self.names[0],
            kept=pages[:1],
            source=pages[1:],
            target=pages[1:],
            tokens=len(pages) * PAGE,
            survivors=(len(pages) - 1) * PAGE,
            prefix=PAGE + PAGE // 2,
            position=self.position,
        )
        self.budgeter.compact(plan, PAGE // 4)

    def decide(self, tokens: int) -> None:
        """Measure one request's demand, then evict a page of it."""
        self.measure(tokens)
        self.compact(tokens)


@torch.inference_mode()
def main(
    tokens: Annotated[list[int] | None, typer.Option(min=128, help="Cached tokens.")] = None,
    threads: Annotated[list[int] | None, typer.Option(min=1, help="Threads of torch.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Shape of a model.")] = None,
    score: Annotated[str, typer.Option(help="Eviction score.")] = "window",
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="Of the model.")
    ] = "bfloat16",
    kv_cache_dtype: Annotated[str, typer.Option(help="As vLLM's: auto, fp8, ...")] = "auto",
    repeats: Annotated[int, typer.Option(min=4, help="Runs of each phase.")] = 40,
) -> None:
    """Print medians and quartiles of each phase of a decision."""
    lengths = tokens or [256, 512, 1024, 2048, 8000]
    config = BudgetConfig.of({"policy": "elastic", "score": score})
    for name in model or list(SHAPES):
        pages = -(-max(lengths) // PAGE)
        bench = Bench(SHAPES[name], config, pages, getattr(torch, dtype), kv_cache_dtype)
        for count in threads or [1, 2]:
            torch.set_num_threads(count)
            head = f"{name}, {count} thread{'s' if count > 1 else ''}"
            # Means matter: what is put off for some steps is done in one of them.
            captured = timed(bench.capture, repeats)
            typer.echo(f"{head}: capture of {REQUESTS} requests {captured}")
            start, spent = time.perf_counter(), time.process_time()
            steps = 4 * config.window
            for _ in range(steps):
                bench.capture()
                bench.take_in()
            step = 1000 * (time.perf_counter() - start) / steps
            cpu = 1000 * (time.process_time() - spent) / steps
            typer.echo(f"{head}: capture and summaries {step:.2f} ms a step (CPU {cpu:.2f})")
            for length in lengths:
                measured = timed(partial(bench.measure, length), repeats)
                compacted = timed(partial(bench.compact, length), repeats, bench.refill)
                both = timed(partial(bench.decide, length), repeats, bench.refill)
                for what, timing in (
                    ("measure", measured),
                    ("compact", compacted),
                    ("decide (both)", both),
                ):
                    typer.echo(f"{head}: {what:13} {length:5d} tokens {timing}")


if __name__ == "__main__":
    typer.run(main)

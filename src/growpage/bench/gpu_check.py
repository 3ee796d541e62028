"""Every Triton kernel against its torch reference, and its bandwidth on an NVIDIA GPU.

``python -m growpage.bench.gpu_check --out gpu.json``. Bandwidth is what a kernel must move at
least, in both directions, over its median time, beside that of ``torch.Tensor.copy_`` in the same
run. ``--interpret`` checks tiny shapes under Triton's interpreter, without a GPU or a time.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from growpage.bench.machine import describe_versions

if TYPE_CHECKING:
    from torch import Tensor

WINDOW, PAGE, BATCH = 16, 16, 64
MASS, BETAS = 0.95, (0.9, 0.999)
WARM_UP, RUNS = 5, 30
FLUSH_BYTES = 256 << 20  # several times any L2 cache; written before each timed run
COPY_BYTES = 2 << 30


@dataclass(frozen=True)
class Shape:
    """What of a model and a request the kernels see."""

    name: str
    layers: int
    query_heads: int
    kv_heads: int
    dim: int
    tokens: int
    """Cached."""


SHAPES = [
    Shape(name, layers, query_heads, kv_heads, dim, tokens)
    for name, layers, query_heads, kv_heads, dim in (
        ("SmolLM2-135M", 30, 9, 3, 64),
        ("Qwen2.5-1.5B", 28, 12, 2, 128),
        ("Llama-3-8B", 32, 32, 8, 128),
    )
    for tokens in (1024, 8000)
]
TINY = [Shape("tiny", layers=1, query_heads=6, kv_heads=2, dim=16, tokens=40)]


@dataclass(frozen=True)
class Outcome:
    """One kernel on one shape."""

    kernel: str
    shape: str
    tokens: int
    error: float
    """The largest difference from the reference, in units of what is allowed; NaN is a mismatch."""
    milliseconds: float | None = None
    gigabytes_per_second: float | None = None

    @property
    def matches(self) -> bool:
        """Whether the difference is allowed."""
        return self.error <= 1


@dataclass(frozen=True)
class Case:
    """A kernel ready to run."""

    kernel: str
    error: float
    run: Callable[[], object]
    bytes_moved: int
    """At least, reads and writes together."""


def cases(shape: Shape, device: str) -> Iterator[Case]:
    """Every kernel on random data of ``shape``, already compared with its reference."""
    import torch

    torch.manual_seed(0)
    for memory, order in (("NHD", (0, 1, 3, 2, 4)), ("HND", (0, 1, 2, 3, 4))):
        pages = -(-shape.tokens // PAGE)
        sizes = (shape.layers, 2 * pages, shape.kv_heads, PAGE, 2 * shape.dim)
        stored = torch.randn([sizes[axis] for axis in order], device=device).bfloat16()
        cache = stored.permute([order.index(axis) for axis in range(5)])
        table = torch.randperm(2 * pages)[:pages]
        yield _scores_case(shape, cache, table.to(device), memory)
        yield _compaction_case(shape, cache, table.tolist(), memory)
    for neox in (True, False):
        yield _averages_case(shape, device, neox)
    yield _working_sets_case(shape, device)


def check(
    shapes: list[Shape], device: str, time_of: Callable[[Callable[[], object]], float] | None
) -> Iterator[Outcome]:
    """Compare, and time with ``time_of``, which returns milliseconds, if there is one."""
    for shape in shapes:
        for case in cases(shape, device):
            taken = time_of(case.run) if time_of else None
            rate = case.bytes_moved / taken / 1e6 if taken else None
            yield Outcome(case.kernel, shape.name, shape.tokens, case.error, taken, rate)


def _scores_case(shape: Shape, cache: Tensor, table: Tensor, memory: str) -> Case:
    import torch

    from growpage.kernels import reference
    from growpage.kernels.window_scores import window_scores

    queries = torch.randn(
        shape.layers, WINDOW, shape.query_heads, shape.dim, device=cache.device
    ).bfloat16()
    arguments = (queries, cache, table, shape.tokens, shape.dim**-0.5)
    found = window_scores(*arguments)
    expected = reference.window_scores(*arguments)
    allowed = 1e-4 * expected.amax(dim=-1, keepdim=True)
    keys = shape.layers * shape.kv_heads * shape.tokens * shape.dim * cache.itemsize
    return Case(
        f"window_scores {memory}",
        _largest((found - expected).abs() / allowed),
        lambda: window_scores(*arguments),
        3 * keys + 2 * queries.nbytes + found.nbytes,  # keys twice, values once
    )


def _compaction_case(shape: Shape, cache: Tensor, table: list[int], memory: str) -> Case:
    import torch

    from growpage.kernels import reference
    from growpage.kernels.compaction import compact

    count = 3 * shape.tokens // 4
    rank = torch.rand(shape.layers, shape.kv_heads, shape.tokens, device=cache.device).argsort(-1)
    survivors = rank[..., :count].sort(dim=-1).values
    target = table[: -(-count // PAGE)]
    error = 0.0
    # In place as the scheduler likes it, and in an order in which pages must be copied aside.
    for pages in (target, target[::-1]):
        expected = reference.compact(cache, survivors, table, pages)
        compact(cache, survivors, table, pages)
        same = torch.equal(cache.contiguous().view(torch.uint8), expected.view(torch.uint8))
        error = max(error, 0.0 if same else float("inf"))
    moved = int((survivors != torch.arange(count, device=cache.device)).sum())
    token = 2 * shape.dim * cache.itemsize
    return Case(
        f"compact {memory}",
        error,
        lambda: compact(cache, survivors, table, target),
        2 * moved * token + survivors.nbytes,
    )


def _averages_case(shape: Shape, device: str, neox: bool) -> Case:
    import torch

    from growpage.budget.rope import Rotary
    from growpage.kernels import reference
    from growpage.kernels.averages import update_averages

    heads = (shape.layers, shape.query_heads, shape.dim)
    average = torch.randn(2 * BATCH, 2, *heads, device=device)
    queries = torch.randn(shape.layers, 2 * BATCH * WINDOW, *heads[1:], device=device).bfloat16()
    steps = torch.arange(shape.dim // 2, device=device) / (shape.dim // 2)
    angles = torch.arange(shape.tokens, device=device)[:, None] * 1e4**-steps
    arguments = (
        torch.randperm(queries.shape[1], device=device)[:BATCH],
        torch.randperm(len(average), device=device)[:BATCH],
        torch.randint(shape.tokens, (BATCH,), device=device),
        Rotary(torch.cat((angles.cos(), angles.sin()), dim=-1), neox=neox),
        BETAS,
    )
    expected = reference.update_averages(average, queries, *arguments)
    allowed = 1e-6 * torch.maximum(average.abs().amax(), queries.abs().amax())
    update_averages(average, queries, *arguments)
    elements = BATCH * shape.layers * shape.query_heads * shape.dim
    return Case(
        f"update_averages {'neox' if neox else 'interleaved'}",
        _largest((average - expected).abs() / allowed),
        lambda: update_averages(average, queries, *arguments),
        elements * (queries.itemsize + 2 * 2 * average.itemsize),
    )


def _working_sets_case(shape: Shape, device: str) -> Case:
    import torch

    from growpage.kernels import reference
    from growpage.kernels.working_set import working_sets

    # Narrow rows and wide ones, of both summaries.
    width = torch.linspace(0.1, 8, shape.query_heads, device=device).view(-1, 1)
    logits = width * torch.randn(shape.layers, 2, shape.query_heads, shape.tokens, device=device)
    attention = logits.softmax(dim=-1)
    capacities = [max(1, shape.tokens - fewer * PAGE) for fewer in range(1, 5)]
    sizes, lost = working_sets(attention, MASS, capacities)
    expected_sizes, expected_lost = reference.working_sets(attention, MASS, capacities)
    error = _largest((lost - expected_lost).abs() / (shape.tokens * 2**-52))
    return Case(
        "working_sets",
        error if torch.equal(sizes, expected_sizes) else float("inf"),
        lambda: working_sets(attention, MASS, capacities),
        attention.nbytes + sizes.nbytes + lost.nbytes,
    )


def _largest(errors: Tensor) -> float:
    """The largest, or NaN if there is one: a NaN matches nothing."""
    return float(errors.max())


# ---- time on a GPU -------------------------------------------------------------------------------


class Stopwatch:
    """Times runs with CUDA events, each after its data has been flushed from the L2 cache."""

    def __init__(self) -> None:
        import torch

        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self, run: Callable[[], object]) -> float:
        """The median of some runs, in milliseconds."""
        import torch

        for _ in range(WARM_UP):
            run()
        times: list[float] = []
        for _ in range(RUNS):
            # It also keeps the GPU busy while the launch is prepared, which is not timed so.
            self._flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)


def copy_rate(time_of: Callable[[Callable[[], object]], float]) -> float:
    """GB/s of ``copy_`` on this GPU, reads and writes together."""
    import torch

    source = torch.empty(COPY_BYTES // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return COPY_BYTES / time_of(lambda: target.copy_(source)) / 1e6


# ---- the command ---------------------------------------------------------------------------------


def main(
    interpret: Annotated[
        bool, typer.Option("--interpret", help="Tiny shapes under Triton's interpreter, no GPU.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Where to write the figures as JSON.")] = None,
) -> None:
    """Check every kernel against its reference; on a GPU, measure its bandwidth too."""
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported, below
    missing = _what_is_missing(interpret)
    if missing:
        typer.echo(missing, err=True)
        raise typer.Exit(2)
    report: dict[str, object] = {"versions": describe_versions()}
    copied, time_of = None, None
    if not interpret:
        import torch

        time_of = Stopwatch()
        copied = copy_rate(time_of)
        gpu = torch.cuda.get_device_name()
        report |= {"gpu": gpu, "copy_gigabytes_per_second": copied}
        typer.echo(f"{gpu}: copies at {copied:.0f} GB/s")
    outcomes = []
    for outcome in check(*((TINY, "cpu") if interpret else (SHAPES, "cuda")), time_of):
        outcomes.append(outcome)
        typer.echo(_line(outcome, copied))
    report["kernels"] = [{**asdict(outcome), "matches": outcome.matches} for outcome in outcomes]
    if out is not None:
        out.write_text(json.dumps(report, indent=2) + "\n")
    wrong = sum(not outcome.matches for outcome in outcomes)
    typer.echo(f"{len(outcomes) - wrong} of {len(outcomes)} match their reference")
    if wrong:
        raise typer.Exit(1)


def _what_is_missing(interpret: bool) -> str | None:
    """Why the check cannot run here, in a sentence, or none."""
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        return f"the check needs torch and Triton ({error}); install growpage with its extra [gpu]"
    if not interpret and (not torch.cuda.is_available() or torch.version.hip):
        return (
            "no NVIDIA GPU that this torch can use was found, so nothing was checked; "
            "pass --interpret to check tiny shapes without one"
        )
    return None


def _line(outcome: Outcome, copied: float | None) -> str:
    text = f"{outcome.kernel:28} {outcome.shape:14} {outcome.tokens:6} tokens"
    text += f"  {'ok' if outcome.matches else 'MISMATCH'} ({outcome.error:.2g} of what is allowed)"
    if outcome.gigabytes_per_second is not None and copied:
        rate = outcome.gigabytes_per_second
        text += f"  {outcome.milliseconds:.3f} ms, {rate:.0f} GB/s, {rate / copied:.0%} of a copy"
    return text


if __name__ == "__main__":
    typer.run(main)

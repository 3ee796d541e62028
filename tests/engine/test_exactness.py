"""Reachability and exactness of compressed caches.

Throughput cannot see a cache that was moved wrongly, so it is checked here against what was
written: every kept key and value is bit for bit one that the request wrote, in order, in pages that
it owns; and every compressed decode row's attention, derived again in float32 from the block table,
is what the kernel returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from growpage.engine.messages import CompactionPlan
from tests.engine.engines import PAGE, Engine, StartEngine
from tests.engine.tiny_models import tiny_llama

pytestmark = pytest.mark.engine

# Largest error over largest value. The kernel works in the cache's precision, whose unit in the
# last place is 2**-8, 2**-11 or 2**-24, and softmax multiplies the error of large logits. One token
# in the wrong place gives errors near 1.
TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 1e-4}


class Observer:
    """Watches one engine: what requests wrote, what compaction made of it, what attention read.

    ``written[request]`` holds every layer's keys and values in natural order. They are taken from
    the attention layer's inputs, not from the cache.
    """

    def __init__(self, engine: Engine) -> None:
        self.runner = engine.runner
        self.cache = self.runner.budgeter.cache
        self.layers = list(self.runner._layers.values())
        self.written: dict[str, list[list[torch.Tensor]]] = {}
        self.kept: dict[str, torch.Tensor] = {}
        self.compactions = 0
        self.rows = 0
        self.worst = 0.0

    # ---- what is written ---------------------------------------------------------------------

    def wrote(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        begin = 0
        rows = self.runner._rows
        for request, start, tokens in zip(
            rows.request_ids, rows.start.tolist(), rows.tokens.tolist(), strict=True
        ):
            if start == 0 and layer == 0:  # its first step, or the first after a preemption
                self.written.pop(request, None)
            history = self.written.setdefault(request, [[] for _ in self.layers])
            pair = torch.stack((key[begin : begin + tokens], value[begin : begin + tokens]))
            history[layer].append(pair.clone())
            begin += tokens

    def history(self, request: str) -> torch.Tensor:
        """``[2, layers, kv_heads, tokens, dim]``."""
        layers = [torch.cat(chunks, dim=1) for chunks in self.written[request]]
        return torch.stack(layers, dim=1).transpose(2, 3)

    # ---- what is kept ------------------------------------------------------------------------

    def cached(self, request: str, tokens: int) -> torch.Tensor:
        """The request's cache through its block table: ``[2, layers, kv_heads, tokens, dim]``."""
        pages = torch.tensor(self.runner.requests[request].block_ids[0])
        every = slice(0, len(self.layers))
        pair = torch.stack((self.cache.keys(every, pages), self.cache.values(every, pages)))
        return pair[..., :tokens, :]

    def compacted(self, plan: CompactionPlan) -> None:
        """The survivors are what was written at ascending positions, bit for bit."""
        self.compactions += 1
        history = self.history(plan.request_id)
        cached = self.cached(plan.request_id, plan.survivors)
        layers, heads = history.shape[1:3]
        for layer in range(layers):
            for head in range(heads):
                rows = {
                    _bits(history[:, layer, head, position]): position
                    for position in range(history.shape[3])
                }
                positions = [
                    rows.get(_bits(cached[:, layer, head, slot])) for slot in range(plan.survivors)
                ]
                assert None not in positions, "a kept token is not one that was written"
                assert positions == sorted(set(positions)), "kept tokens are not in order"
                assert positions[: plan.prefix] == list(range(plan.prefix))
                recent = range(plan.position - 16, plan.position)
                assert positions[-16:] == list(recent)

    # ---- what attention read -----------------------------------------------------------------

    def attended(self, layer: int, query: torch.Tensor, output: torch.Tensor, scale: float) -> None:
        rows = self.runner._rows
        begin = 0
        for request, start, tokens in zip(
            rows.request_ids, rows.start.tolist(), rows.tokens.tolist(), strict=True
        ):
            evicted = self.runner._message.evicted.get(request, 0)
            if evicted:
                pages = torch.tensor(self.runner.requests[request].block_ids[0])
                held = start + tokens - evicted
                assert len(pages) == -(-held // PAGE)
                one = slice(layer, layer + 1)
                keys = self.cache.keys(one, pages)[0, :, :held].float()
                values = self.cache.values(one, pages)[0, :, :held].float()
                rows_of = slice(begin, begin + tokens)
                grouped = query[rows_of].float().view(tokens, len(keys), -1, query.shape[-1])
                logits = torch.einsum("tkgd,khd->tkgh", grouped, keys) * scale
                later = torch.arange(held) > torch.arange(held - tokens, held).view(-1, 1, 1, 1)
                weights = torch.softmax(logits.masked_fill(later, -torch.inf), dim=-1)
                expected = torch.einsum("tkgh,khd->tkgd", weights, values).flatten(1)
                error = (expected - output[rows_of].float().flatten(1)).abs().max()
                self.worst = max(self.worst, (error / expected.abs().max()).item())
                self.rows += tokens
            begin += tokens


def _bits(row: torch.Tensor) -> bytes:
    return row.contiguous().view(torch.uint8).numpy().tobytes()


@contextmanager
def observed(engine: Engine) -> Iterator[Observer]:
    """Wrap compaction and every layer's attention for the time of a test."""
    observer = Observer(engine)
    budgeter, runner = engine.runner.budgeter, engine.runner
    adopt = runner._adopt_pages

    def adopt_and_check(plan: CompactionPlan) -> None:
        adopt(plan)
        observer.compacted(plan)

    def wrap(index: int, impl: Any) -> Any:
        forward = impl.forward

        def watched(layer, query, key, value, kv_cache, metadata, output, *args, **kwargs):  # type: ignore[no-untyped-def]
            observer.wrote(index, key[: metadata.num_actual_tokens], value)
            result = forward(layer, query, key, value, kv_cache, metadata, output, *args, **kwargs)
            observer.attended(index, query, output, impl.scale)
            return result

        return watched

    runner._adopt_pages = adopt_and_check
    for index, layer in enumerate(observer.layers):
        layer.impl.forward = wrap(index, layer.impl)
    try:
        yield observer
    finally:
        del runner._adopt_pages
        for layer in observer.layers:
            del layer.impl.forward
    assert budgeter.cache is observer.cache


@pytest.mark.parametrize(
    ("dtype", "head_size", "layout"),
    [
        ("bfloat16", 64, "amx"),
        ("float16", 64, "vec"),
        ("float32", 64, "vec"),
        ("float32", 80, "vec16"),
        ("bfloat16", 80, "vec16"),
    ],
)
@pytest.mark.parametrize("score", ["window", "random"])
def test_kept_tokens_and_attention_in_every_layout(
    start_engine: StartEngine,
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str,
    head_size: int,
    layout: str,
    score: str,
) -> None:
    if layout == "amx" and not torch.cpu._is_amx_tile_supported():
        layout = "vec"
    model = tiny_llama(tmp_path_factory, head_size=head_size, layers=3, heads=6, kv_heads=2)
    engine = start_engine(
        {"policy": "fixed", "budget": 128, "score": score, "step": 64 if score == "random" else 32},
        model=model,
        dtype=dtype,
        pages=40,
    )
    assert engine.runner.budgeter.cache.layout.name == layout
    prompts = [[(7 * n + t) % 250 for t in range(20 + 45 * n)] for n in range(5)]
    with observed(engine) as seen:
        engine.generate(prompts, 130)
    assert seen.compactions >= 10
    assert seen.rows > 3 * 5 * 20
    assert seen.worst < TOLERANCE[getattr(torch, dtype)]


def test_the_default_model(start_engine: StartEngine, smollm2_path: Path) -> None:
    engine = start_engine({"policy": "fixed", "budget": 64}, pages=32, model=smollm2_path)
    with observed(engine) as seen:
        engine.generate(["Write a long list of animals:", "The history of Rome"], 80)
    assert seen.compactions >= 2
    assert seen.rows > 30 * 2 * 20
    assert seen.worst < TOLERANCE[torch.bfloat16]


def test_the_compiled_mode(
    start_engine: StartEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The tap and the physical lengths are outside the compiled graph, and work beside it."""
    engine = start_engine(
        {"policy": "fixed", "budget": 128},
        model=tiny_llama(tmp_path_factory, head_size=64, layers=2, heads=6, kv_heads=2),
        pages=40,
        enforce_eager=False,
    )
    with observed(engine) as seen:
        engine.generate([list(range(20)), list(range(30, 130))], 130)
    assert seen.compactions >= 3
    assert seen.rows > 2 * 2 * 20
    assert seen.worst < TOLERANCE[torch.bfloat16]

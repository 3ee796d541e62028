"""Watches one engine for reachability and exactness of compressed caches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from growpage.engine.messages import CompactionPlan
from tests.engine.engines import PAGE, Engine

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
        self.owned = engine.scheduler.pages.req_to_blocks
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
            pair = (key[begin : begin + tokens], value[begin : begin + tokens])
            history[layer].append(torch.stack(self.as_stored(layer, *pair)))
            begin += tokens

    def as_stored(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """What the cache should hold of a layer's inputs."""
        if self.cache.codes is None:
            return key, value
        shifted = key - self.layers[layer].impl.centre.vector
        # The kernel stores no negative zero, and nor does adding zero leave one.
        return tuple(
            (part.to(self.cache.codes.dtype).to(part.dtype) + 0.0)
            .to(self.cache.codes.dtype)
            .view(torch.uint8)
            for part in (shifted, value)
        )

    def history(self, request: str) -> torch.Tensor:
        """``[2, layers, kv_heads, tokens, dim]``."""
        layers = [torch.cat(chunks, dim=1) for chunks in self.written[request]]
        return torch.stack(layers, dim=1).transpose(2, 3)

    def pages(self, request: str) -> torch.Tensor:
        """The pages that the request owns, by the scheduler's account."""
        return torch.tensor([block.block_id for block in self.owned[request]])

    # ---- what is kept ------------------------------------------------------------------------

    def cached(self, request: str, tokens: int) -> torch.Tensor:
        """What is stored in the pages that it owns: ``[2, layers, kv_heads, tokens, dim]``."""
        pages = self.pages(request)
        every = slice(0, len(self.layers))
        pair = torch.stack(
            (self.cache.stored_keys(every, pages), self.cache.stored_values(every, pages))
        )
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

    def attended(
        self, layer: int, query: torch.Tensor, metadata: Any, output: torch.Tensor, scale: float
    ) -> None:
        rows = self.runner._rows
        begin = 0
        for row, (request, start, tokens) in enumerate(
            zip(rows.request_ids, rows.start.tolist(), rows.tokens.tolist(), strict=True)
        ):
            evicted = self.runner._message.evicted.get(request, 0)
            if evicted:
                pages = self.pages(request)
                held = start + tokens - evicted
                assert len(pages) == -(-held // PAGE)
                assert metadata.block_table[row, : len(pages)].tolist() == pages.tolist()
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
            observer.attended(index, query, metadata, output, impl.scale)
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

"""Every score against a loop over one small cache."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from growpage.budget.config import ScoreName
from growpage.budget.scores import SCORES, CacheView

LAYERS, KV_HEADS, GROUP, TOKENS, DIM, N = 2, 2, 3, 21, 8, 4
SCALE = 0.35


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def view(request: pytest.FixtureRequest) -> CacheView:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return CacheView(
        keys=normal(LAYERS, KV_HEADS, TOKENS, DIM).to(request.param),
        values=normal(LAYERS, KV_HEADS, TOKENS, DIM).to(request.param),
        scale=SCALE,
        window=normal(LAYERS, N, KV_HEADS * GROUP, DIM).to(request.param),
        summaries=normal(2, LAYERS, KV_HEADS * GROUP, DIM),
        seed=3,
    )


def attention(query: Tensor, keys: Tensor) -> list[float]:
    return (keys.double() @ query.double() * SCALE).softmax(-1).tolist()


def group_maximum(queries: Tensor, keys: Tensor, kv: int) -> list[float]:
    """The largest weight of each token over the query heads ``[heads, dim]`` that share a head."""
    heads = range(kv * GROUP, (kv + 1) * GROUP)
    return [max(each) for each in zip(*(attention(queries[h], keys) for h in heads), strict=True)]


def test_every_name_of_the_configuration_has_a_score() -> None:
    assert tuple(SCORES) == get_args(ScoreName)


def test_window(view: CacheView) -> None:
    assert view.window is not None
    scores = SCORES["window"](view)
    for layer in range(LAYERS):
        for kv in range(KV_HEADS):
            keys, norm = view.keys[layer, kv], view.values[layer, kv].double().norm(dim=-1)
            # Each query of the window sees the keys up to its own token.
            of_query = [
                group_maximum(view.window[layer, n], keys[: TOKENS - N + n + 1], kv)
                for n in range(N)
            ]
            of_query = [seen + [0.0] * (TOKENS - len(seen)) for seen in of_query]
            expected = torch.tensor(of_query, dtype=torch.float64).mean(0) * norm
            torch.testing.assert_close(scores[layer, kv], expected.float(), rtol=1e-4, atol=1e-6)


def test_summary(view: CacheView) -> None:
    assert view.summaries is not None
    scores = SCORES["summary"](view)
    for layer in range(LAYERS):
        for kv in range(KV_HEADS):
            keys, norm = view.keys[layer, kv], view.values[layer, kv].double().norm(dim=-1)
            both = [group_maximum(view.summaries[which, layer], keys, kv) for which in range(2)]
            expected = torch.tensor(both, dtype=torch.float64).amax(0) * norm
            torch.testing.assert_close(scores[layer, kv], expected.float(), rtol=1e-4, atol=1e-6)


def test_streaming_prefers_the_late(view: CacheView) -> None:
    assert (SCORES["streaming"](view).diff(dim=-1) > 0).all()


def test_random_is_reproducible(view: CacheView) -> None:
    random = SCORES["random"]
    torch.manual_seed(0)
    scores = random(view)
    torch.manual_seed(1)
    assert torch.equal(scores, random(view)), "the global seed must not matter"
    assert not torch.equal(scores, random(replace(view, seed=4)))
    assert len(scores.unique()) == scores.numel(), "every layer and head draws its own"


@pytest.mark.parametrize("name", SCORES)
def test_shape(name: str, view: CacheView) -> None:
    scores = SCORES[name](view)
    assert scores.shape == (LAYERS, KV_HEADS, TOKENS) and scores.dtype == torch.float32
    assert scores.isfinite().all()

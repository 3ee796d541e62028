"""Every score against a loop over one small cache."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import growpage.budget.scores
from growpage.budget.config import SUMMARY_SCORES, WINDOW_SCORES, ScoreName
from growpage.budget.scores import ALIKE, SCORES, CacheView, key_redundancy

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


def test_window_mass_is_the_window_without_the_value_norm(view: CacheView) -> None:
    norm = view.values.float().norm(dim=-1)
    torch.testing.assert_close(SCORES["window_mass"](view) * norm, SCORES["window"](view))


def moved(query: Tensor, keys: Tensor, values: Tensor) -> list[float]:
    """How far attention's output moves as each key is dropped in turn, by dropping it."""
    values = values.double()
    output = torch.tensor(attention(query, keys), dtype=torch.float64) @ values
    distances = []
    for dropped in range(len(keys)):
        others = [i for i in range(len(keys)) if i != dropped]
        weights = torch.tensor(attention(query, keys[others]), dtype=torch.float64)
        distances.append(float((weights @ values[others] - output).norm()))
    return distances


def test_output_error(view: CacheView) -> None:
    assert view.window is not None
    scores = SCORES["output_error"](view)
    for layer in range(LAYERS):
        for kv in range(KV_HEADS):
            expected = torch.zeros(N, TOKENS, dtype=torch.float64)
            for n in range(N):
                seen = TOKENS - N + n + 1
                keys, values = view.keys[layer, kv, :seen], view.values[layer, kv, :seen]
                of_head = [
                    moved(view.window[layer, n, head], keys, values)
                    for head in range(kv * GROUP, (kv + 1) * GROUP)
                ]
                expected[n, :seen] = torch.tensor(of_head, dtype=torch.float64).amax(0)
            torch.testing.assert_close(
                scores[layer, kv], expected.mean(0).float(), rtol=1e-3, atol=1e-5
            )


@given(st.floats(0, 60), st.floats(-1e4, 1e4), st.integers(0, 1000))
def test_output_error_is_finite_and_bounded_however_sharp_attention_is(
    sharpness: float, offset: float, seed: int
) -> None:
    """Up to a key that takes all the weight, and values that lie far from the origin."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(1, 1, 12, DIM, generator=generator)
    values = torch.randn(1, 1, 12, DIM, generator=generator) + offset
    window = sharpness * keys[:, 0, 3:4, None].expand(1, 1, GROUP, DIM)
    error = SCORES["output_error"](CacheView(keys, values, SCALE, window=window))
    spread = float((values - values.mean(dim=-2, keepdim=True)).norm(dim=-1).amax())
    assert error.isfinite().all() and (error >= 0).all() and (error <= 2 * spread + 1e-3).all()


def test_output_error_spares_no_token_for_its_weight_alone() -> None:
    """A token whose value is what all others agree on can go, though it is attended to most."""
    keys = torch.zeros(1, 1, 4, 2)
    keys[0, 0, 1] = torch.tensor([3.0, 0.0])
    values = torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, -5.0], [1.0, 1.0]]).view(1, 1, 4, 2)
    view = CacheView(keys, values, 1.0, window=torch.tensor([1.0, 0.0]).view(1, 1, 1, 2))
    assert int(SCORES["window"](view).argmax()) == 1
    assert int(SCORES["output_error"](view).argmin()) == 1


def resemblance(keys: Tensor) -> list[float]:
    """Of each of ``keys [tokens, dim]`` to the others, pair by pair."""
    found = []
    for i, one in enumerate(keys.double()):
        others = [
            0.0 if i == j else float(torch.cosine_similarity(one, other, dim=0))
            for j, other in enumerate(keys.double())
        ]
        alike = [j for j, similarity in enumerate(others) if similarity > ALIKE]
        if alike:
            others[alike[-1]] = 0.0
        found.append(sum(others) / len(others))
    return found


@pytest.mark.parametrize("pairs", [1, 5 * LAYERS * KV_HEADS * TOKENS, 1 << 22])
def test_key_redundancy_whatever_is_compared_at_once(
    view: CacheView, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growpage.budget.scores, "MOST_PAIRS", pairs)
    expected = torch.tensor(
        [[resemblance(view.keys[la, kv]) for kv in range(KV_HEADS)] for la in range(LAYERS)]
    )
    torch.testing.assert_close(key_redundancy(view.keys), expected, rtol=1e-4, atol=1e-5)


def test_diversity(view: CacheView) -> None:
    redundancy = torch.tensor(
        [[resemblance(view.keys[la, kv]) for kv in range(KV_HEADS)] for la in range(LAYERS)]
    ).softmax(-1)
    expected = 0.1 * SCORES["window_mass"](view) - 0.9 * redundancy
    torch.testing.assert_close(SCORES["diversity"](view), expected, rtol=1e-4, atol=1e-5)


def test_of_tokens_equally_attended_to_diversity_drops_the_one_that_others_resemble() -> None:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(1, 1, 12, 16, generator=generator)
    keys[0, 0, 3:8] = keys[0, 0, 3] + 0.1 * torch.randn(5, 16, generator=generator)
    view = CacheView(keys, keys, SCALE, window=torch.zeros(1, 1, GROUP, 16))
    assert set(SCORES["diversity"](view)[0, 0].argsort()[:5].tolist()) == set(range(3, 8))


def test_both_is_the_larger_of_window_and_summary(view: CacheView) -> None:
    larger = torch.maximum(SCORES["window"](view), SCORES["summary"](view))
    torch.testing.assert_close(SCORES["both"](view), larger)
    assert not torch.equal(larger, SCORES["window"](view))
    assert not torch.equal(larger, SCORES["summary"](view))


@pytest.mark.parametrize("name", SCORES)
def test_a_score_looks_at_what_it_is_said_to(name: str, view: CacheView) -> None:
    """What is not said to be needed need not be there, and what is needed matters."""
    window = view.window if name in WINDOW_SCORES else None
    summaries = view.summaries if name in SUMMARY_SCORES else None
    scores = SCORES[name](replace(view, window=window, summaries=summaries))
    for missing, named in (("window", WINDOW_SCORES), ("summaries", SUMMARY_SCORES)):
        if name in named:
            other = replace(view, **{missing: getattr(view, missing).flip(-1)})
            assert not torch.equal(SCORES[name](other), scores)


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

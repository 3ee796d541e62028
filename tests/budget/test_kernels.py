"""Compiled loops against the torch code that other devices use."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from growpage.budget.attention import attention_weights
from growpage.budget.demand import by_sorting, demand_by_head
from growpage.budget.selection import select_by_sorting, select_survivors


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 400),
    st.floats(0, 8),
    st.floats(0.01, 0.999),
    st.integers(0, 2**32),
    st.lists(st.floats(0, 1), max_size=4),
)
def test_working_sets_and_losses_are_those_of_sorting(
    tokens: int, sharpness: float, mass: float, seed: int, shares: list[float]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    summaries = torch.randn(2, 2, 6, 8, generator=generator) * sharpness
    keys = torch.randn(2, 3, tokens, 8, generator=generator)
    if seed % 3 == 0:
        keys[..., tokens // 2 :, :] = keys[..., :1, :]  # equal weights
    capacities = [max(int(share * tokens), 1) for share in shares]
    found = demand_by_head(summaries, keys, 0.4, mass, capacities)
    weights = attention_weights(summaries.transpose(0, 1), keys, 0.4)
    expected = by_sorting(weights, mass, capacities)
    assert torch.equal(found[:, :3], expected[:, :3]), "integers"
    torch.testing.assert_close(found[:, 3:], expected[:, 3:], rtol=0, atol=1e-12)


def test_weights_that_are_no_numbers_are_reported_as_by_sorting() -> None:
    weights = torch.full((1, 1, 2, 1, 5), 0.2)
    weights[..., 1, 0, 3] = torch.nan
    weights[..., 0, 0, 2] = torch.nan
    summaries = torch.full((2, 1, 1, 4), torch.nan)
    found = demand_by_head(summaries, torch.ones(1, 1, 5, 4), 1.0, 0.9, [3])
    assert torch.equal(found[:, :3], by_sorting(weights, 0.9, [3])[:, :3])
    assert found[0, 3].isnan()


@settings(max_examples=120, deadline=None)
@given(st.data(), st.integers(0, 2**32))
def test_survivors_are_those_of_sorting(data: st.DataObject, seed: int) -> None:
    """Where no two scores tie: of equal ones torch keeps any."""
    page = data.draw(st.sampled_from([4, 32]))
    tokens = data.draw(st.integers(1, 6 * page))
    prefix = data.draw(st.integers(0, tokens))
    recent = data.draw(st.integers(0, tokens - prefix))
    keep = data.draw(st.integers(prefix + recent, tokens))
    quota = data.draw(st.integers(0, page))
    generator = torch.Generator().manual_seed(seed)
    scores = torch.stack([torch.randperm(tokens, generator=generator) for _ in range(3)]).float()
    scores = (scores - tokens / 2) * 2.0 ** data.draw(st.integers(-60, 60))
    kept = select_survivors(
        scores, keep, prefix=prefix, recent=recent, page=page, local_quota=quota
    )
    pages = [range(start, min(start + page, tokens)) for start in range(0, tokens, page)]
    free = [
        sum(prefix <= token < tokens - recent for token in page_tokens) for page_tokens in pages
    ]
    while sum(min(quota, each) for each in free) > keep - prefix - recent:
        quota -= 1
    assert torch.equal(kept, select_by_sorting(scores, keep, prefix, recent, page, quota))

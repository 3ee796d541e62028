"""Grouped-query attention against a loop over heads."""

from __future__ import annotations

import pytest
import torch

from growpage.budget.attention import attention_weights

KV_HEADS, DIM, TOKENS, N = 2, 8, 37, 5


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_those_of_a_loop(group: int, lead: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(group)
    queries = torch.randn(*lead, N, KV_HEADS * group, DIM, generator=generator).to(dtype)
    keys = torch.randn(*lead, KV_HEADS, TOKENS, DIM, generator=generator).to(dtype)
    before = queries.clone(), keys.clone()
    weights = attention_weights(queries, keys, 0.3)
    assert weights.shape == (*lead, KV_HEADS, N, group, TOKENS) and weights.dtype == torch.float32
    assert torch.equal(queries, before[0]) and torch.equal(keys, before[1])
    flat = (
        queries.view(-1, N, KV_HEADS * group, DIM).double(),
        keys.view(-1, KV_HEADS, TOKENS, DIM).double(),
        weights.view(-1, KV_HEADS, N, group, TOKENS),
    )
    for q, k, got in zip(*flat, strict=True):
        for head in range(KV_HEADS * group):
            kv, member = divmod(head, group)
            for n in range(N):
                expected = (k[kv] @ q[n, head] * 0.3).exp()
                expected /= expected.sum()
                torch.testing.assert_close(
                    got[kv, n, member], expected.float(), atol=1e-6, rtol=1e-5
                )


def test_padding_is_not_seen() -> None:
    generator = torch.Generator().manual_seed(2)
    queries = torch.randn(2, 3, N, 4, DIM, generator=generator)
    keys = torch.randn(2, 3, KV_HEADS, TOKENS, DIM, generator=generator)
    lengths = torch.tensor([[1, 37, 20], [36, 5, 2]])
    for row in range(2):
        for column in range(3):
            keys[row, column, :, lengths[row, column] :] = torch.nan
    weights = attention_weights(queries, keys, 0.5, lengths=lengths)
    for row in range(2):
        for column in range(3):
            length = int(lengths[row, column])
            alone = attention_weights(queries[row, column], keys[row, column, :, :length], 0.5)
            torch.testing.assert_close(weights[row, column, ..., :length], alone)
            assert not weights[row, column, ..., length:].any()


def test_large_logits_do_not_overflow() -> None:
    queries, keys = torch.full((1, 1, 4), 1e4), torch.eye(4).unsqueeze(0) * 1e4
    torch.testing.assert_close(
        attention_weights(queries, keys, 1.0).flatten(), torch.full((4,), 0.25)
    )


def test_views_will_do() -> None:
    """As the engine passes them: a transposed query and a strided slice of the keys."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 2, 4, DIM, generator=generator).transpose(0, 1)
    keys = torch.randn(2, 2, TOKENS, DIM, generator=generator)[:, :, :30]
    contiguous = attention_weights(queries.contiguous(), keys.contiguous(), 0.5)
    assert torch.equal(attention_weights(queries, keys, 0.5), contiguous)

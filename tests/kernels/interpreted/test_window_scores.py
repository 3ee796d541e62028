"""Scores read from pages against the definition on plain keys and values."""

from __future__ import annotations

import pytest
import torch

from growpage.kernels.reference import window_scores as reference
from growpage.kernels.window_scores import window_scores
from tests.kernels.interpreted.caches import laid_out

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-4, torch.float16: 1e-4}


def example(
    layers: int, seen: int, heads: tuple[int, int], dim: int, pages: int, page: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, a cache twice as large as is needed, and a table."""
    generator = torch.Generator().manual_seed(seen)
    query_heads, kv_heads = heads
    queries = 2 * torch.randn(layers, seen, query_heads, dim, generator=generator)
    cache = torch.randn(layers, 2 * pages, kv_heads, page, 2 * dim, generator=generator)
    return queries, cache, torch.randperm(2 * pages, generator=generator)[:pages]


def check(
    queries: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, tokens: int
) -> torch.Tensor:
    scale = queries.shape[-1] ** -0.5
    found = window_scores(queries, cache, table, tokens, scale)
    expected = reference(queries, cache, table, tokens, scale)
    assert found.shape == expected.shape
    most = expected.amax(dim=-1, keepdim=True)
    assert ((found - expected).abs() <= TOLERANCE[cache.dtype] * most).all()
    return found


@pytest.mark.parametrize(
    ("heads", "dim", "seen", "page", "tokens", "dtype", "layout"),
    [
        ((9, 3), 64, 16, 16, 150, torch.bfloat16, "LBNHC"),
        ((12, 2), 128, 16, 16, 64, torch.float16, "LBHNC"),
        ((4, 1), 128, 5, 32, 33, torch.float32, "BLNHC"),
        ((2, 2), 24, 3, 16, 3, torch.float32, "BLHNC"),
        ((7, 1), 80, 1, 48, 48, torch.bfloat16, "BHLNC"),
        ((1, 1), 16, 8, 16, 130, torch.float16, "LHBNC"),
    ],
)
def test_scores(
    heads: tuple[int, int],
    dim: int,
    seen: int,
    page: int,
    tokens: int,
    dtype: torch.dtype,
    layout: str,
) -> None:
    queries, cache, table = example(2, seen, heads, dim, -(-tokens // page), page)
    check(queries.to(dtype), laid_out(cache.to(dtype), layout), table, tokens)


def test_many_tokens_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of one split, and splits of one head, add up."""
    monkeypatch.setattr("growpage.kernels.window_scores._TOKENS_EXACT", 16)
    monkeypatch.setattr("growpage.kernels.window_scores._SPLITS", 4)
    queries, cache, table = example(1, 4, (2, 1), 16, 10, 16)
    check(queries, cache, table, 145)


def test_queries_and_cache_of_two_dtypes() -> None:
    queries, cache, table = example(1, 4, (2, 1), 16, 2, 16)
    check(queries, cache.bfloat16(), table, 20)


def test_what_lies_beyond_the_tokens_does_not_matter() -> None:
    queries, cache, table = example(1, 4, (2, 1), 16, 2, 16)
    before = check(queries, cache, table, 20)
    cache[:, table[1], :, 4:] = torch.nan
    others = [page for page in range(4) if page not in table.tolist()]
    cache[:, others] = torch.nan
    assert torch.equal(window_scores(queries, cache, table, 20, 16**-0.5), before)


def test_large_logits() -> None:
    queries, cache, table = example(1, 4, (2, 1), 16, 2, 16)
    check(100 * queries, cache, table, 30)


def test_bad_arguments_are_refused() -> None:
    queries, cache, table = example(1, 4, (2, 1), 16, 2, 16)
    for arguments, message in (
        ((queries[..., :8], cache, table, 20), "cannot answer"),
        ((queries, cache.double(), table, 20), "the cache are torch.float64"),
        ((queries, cache, table, 33), "4 queries over 33 tokens in 2 pages of 16"),
        ((queries, cache, table, 3), "4 queries over 3 tokens"),
        ((queries[:, :0], cache, table, 3), "0 queries over 3 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            window_scores(*arguments, 0.25)

"""Scores of a request's cached tokens by its last queries, read straight from the paged cache.

Two passes over the keys: the first finds what each query's softmax divides by, the second computes
the weights again and reduces them. So nothing of size ``queries * tokens`` is ever in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TOKENS = 64  # of one tile
_TOKENS_EXACT = 16  # of one tile in float32, which has no matrix unit: more are slow to compile
_SPLITS = 32  # programs that share the tokens of one KV head
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def window_scores(
    queries: Tensor, cache: Tensor, table: Tensor, tokens: int, scale: float
) -> Tensor:
    """``growpage.budget.scores.window``: causal attention, largest of the group, times value norm.

    Differs from the reference by at most ``1e-4`` of the row's largest score for 16-bit caches and
    ``2e-5`` for float32 ones: both multiply exactly and sum in float32, in another order. Scores
    are not comparable where a key, a query or a logit is not finite.

    Temporaries: two floats for each layer, query and query head, 32 times at most.

    Args:
        queries: ``[layers, n, query_heads, dim]``, of the last ``n`` cached tokens, rotated.
        cache: ``[layers, pages, kv_heads, page_tokens, 2 * dim]``, each token's key before its
            value, contiguous in its last axis.
        table: ``[m]`` integers, contiguous: the request's pages in order.
        tokens: cached, at most ``m * page_tokens`` and at least ``n``.
        scale: what logits are multiplied by.

    Returns:
        ``[layers, kv_heads, tokens]`` float32.

    Raises:
        ValueError: arguments are not as described.
    """
    layers, _, kv_heads, page_tokens, width = cache.shape
    seen, query_heads, dim = queries.shape[1:]
    if len(queries) != layers or 2 * dim != width or query_heads % kv_heads:
        raise ValueError(
            f"queries are {list(queries.shape)}, which a cache of {layers} layers, {kv_heads} KV "
            f"heads and {width} elements a token cannot answer"
        )
    for name, tensor in (("queries", queries), ("cache", cache)):
        if tensor.dtype not in _DTYPES or tensor.stride(-1) != 1:
            raise ValueError(
                f"the {name} are {tensor.dtype} with a last stride of {tensor.stride(-1)}; they "
                f"must be one of {', '.join(map(str, _DTYPES))}, and the stride 1"
            )
    if not 1 <= seen <= tokens <= len(table) * page_tokens:
        raise ValueError(
            f"{seen} queries over {tokens} tokens in {len(table)} pages of {page_tokens}; there "
            "must be at least one query, as many tokens as queries, and room for the tokens"
        )
    group = query_heads // kv_heads
    as_stored = queries.dtype == cache.dtype != torch.float32
    if triton.knobs.runtime.interpret and cache.dtype == torch.bfloat16:
        as_stored = False  # Triton 3.9's interpreter multiplies the bits of bfloat16 as integers
    tile = _TOKENS if as_stored else _TOKENS_EXACT
    tiles = triton.cdiv(triton.cdiv(tokens, tile), _SPLITS)
    splits = triton.cdiv(tokens, tiles * tile)
    together = triton.next_power_of_2(group)
    at_once = max(triton.next_power_of_2(seen), 16 // together)  # a product has 16 rows at least
    sums = torch.empty(
        (2, layers, kv_heads, splits, at_once * together), dtype=torch.float32, device=cache.device
    )
    scores = torch.empty((layers, kv_heads, tokens), dtype=torch.float32, device=cache.device)
    shared = (queries, cache, table, sums)
    numbers = (seen, group, dim, tokens, tiles, splits, scale)
    strides = (*queries.stride()[:3], *cache.stride()[:4])
    sizes = {
        "PAGE": page_tokens,
        "QUERIES": at_once,
        "GROUP": together,
        "DIM": max(16, triton.next_power_of_2(dim)),
        "TOKENS": tile,
        "AS_STORED": as_stored,
        "num_warps": 8,
    }
    grid = (splits, kv_heads, layers)
    _sum[grid](*shared, *numbers, *strides, **sizes)
    _score[grid](*shared, scores, *numbers, *strides, **sizes, SPLITS=_SPLITS)
    return scores


@triton.jit
def _load_queries(
    queries, seen, group, dim, queries_layer, queries_token, queries_head,
    QUERIES: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, AS_STORED: tl.constexpr,
):  # fmt: skip
    """One KV head's queries ``[QUERIES * GROUP, DIM]``, and which row is whose query."""
    row = tl.arange(0, QUERIES * GROUP)
    query, member = row // GROUP, row % GROUP
    element = tl.arange(0, DIM)
    queries += tl.program_id(2).to(tl.int64) * queries_layer
    head = tl.program_id(1) * group + member
    there = (query < seen) & (member < group)
    found = tl.load(
        queries + (query * queries_token + head * queries_head)[:, None] + element[None, :],
        mask=there[:, None] & (element < dim)[None, :],
        other=0.0,
    )
    return (found if AS_STORED else found.to(tl.float32)), query


@triton.jit
def _places(
    cache, table, token, tokens, cache_layer, cache_page, cache_head, cache_token,
    PAGE: tl.constexpr,
):  # fmt: skip
    """Where the keys of these tokens start."""
    page = tl.load(table + token // PAGE, mask=token < tokens, other=0).to(tl.int64)
    cache += tl.program_id(2).to(tl.int64) * cache_layer
    cache += tl.program_id(1).to(tl.int64) * cache_head
    return cache + page * cache_page + token % PAGE * cache_token


@triton.jit
def _logits(
    rows, query, places, token, seen, dim, tokens, scale,
    DIM: tl.constexpr, AS_STORED: tl.constexpr,
):  # fmt: skip
    """``[rows, tokens]``; minus infinity where a query does not see a token."""
    element = tl.arange(0, DIM)
    keys = tl.load(
        places[None, :] + element[:, None],
        mask=(element < dim)[:, None] & (token < tokens)[None, :],
        other=0.0,
    )
    if not AS_STORED:
        keys = keys.to(tl.float32)
    logits = tl.dot(rows, keys, input_precision="ieee") * scale
    last = tokens - seen + query  # that each query sees; rows of padding see as many, or all
    return tl.where((token[None, :] <= last[:, None]) & (token < tokens)[None, :], logits, -1e38)


@triton.jit
def _sum(
    queries, cache, table, sums, seen, group, dim, tokens, tiles, splits, scale,
    queries_layer, queries_token, queries_head,
    cache_layer, cache_page, cache_head, cache_token,
    PAGE: tl.constexpr, QUERIES: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    TOKENS: tl.constexpr, AS_STORED: tl.constexpr,
):  # fmt: skip
    """Each query's largest logit, and the sum of its exponentials, over one split."""
    rows, query = _load_queries(
        queries, seen, group, dim, queries_layer, queries_token, queries_head,
        QUERIES, GROUP, DIM, AS_STORED,
    )  # fmt: skip
    most = tl.full((QUERIES * GROUP,), -1e38, tl.float32)
    total = tl.zeros((QUERIES * GROUP,), tl.float32)
    for tile in range(0, tiles):
        token = (tl.program_id(0) * tiles + tile) * TOKENS + tl.arange(0, TOKENS)
        places = _places(
            cache, table, token, tokens, cache_layer, cache_page, cache_head, cache_token, PAGE
        )
        logits = _logits(rows, query, places, token, seen, dim, tokens, scale, DIM, AS_STORED)
        higher = tl.maximum(most, tl.max(logits, axis=1))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(logits - higher[:, None]), axis=1)
        most = higher
    here = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * splits + tl.program_id(0)
    every = tl.num_programs(2) * tl.num_programs(1) * splits
    row = tl.arange(0, QUERIES * GROUP)
    tl.store(sums + here * (QUERIES * GROUP) + row, most)
    tl.store(sums + (every + here) * (QUERIES * GROUP) + row, total)


@triton.jit
def _score(
    queries, cache, table, sums, scores, seen, group, dim, tokens, tiles, splits, scale,
    queries_layer, queries_token, queries_head,
    cache_layer, cache_page, cache_head, cache_token,
    PAGE: tl.constexpr, QUERIES: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    TOKENS: tl.constexpr, AS_STORED: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    rows, query = _load_queries(
        queries, seen, group, dim, queries_layer, queries_token, queries_head,
        QUERIES, GROUP, DIM, AS_STORED,
    )  # fmt: skip
    head = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    every = tl.num_programs(2) * tl.num_programs(1) * splits
    row, split = tl.arange(0, QUERIES * GROUP), tl.arange(0, SPLITS)
    parts = sums + ((head * splits + split[None, :]) * (QUERIES * GROUP) + row[:, None])
    there = (split < splits)[None, :]
    mosts = tl.load(parts, mask=there, other=-1e38)
    totals = tl.load(parts + every * (QUERIES * GROUP), mask=there, other=0.0)
    most = tl.max(mosts, axis=1)
    total = tl.sum(totals * tl.exp(mosts - most[:, None]), axis=1)
    # Rows of padding would have weights, too.
    real = (query < seen) & (row % GROUP < group)
    share = tl.where(real, 1 / total, 0.0)
    element = tl.arange(0, DIM)
    for tile in range(0, tiles):
        token = (tl.program_id(0) * tiles + tile) * TOKENS + tl.arange(0, TOKENS)
        places = _places(
            cache, table, token, tokens, cache_layer, cache_page, cache_head, cache_token, PAGE
        )
        logits = _logits(rows, query, places, token, seen, dim, tokens, scale, DIM, AS_STORED)
        weights = tl.exp(logits - most[:, None]) * share[:, None]
        largest = tl.max(tl.reshape(weights, (QUERIES, GROUP, TOKENS)), axis=1)
        values = tl.load(
            places[:, None] + dim + element[None, :],
            mask=(token < tokens)[:, None] & (element < dim)[None, :],
            other=0.0,
        ).to(tl.float32)
        norm = tl.sqrt(tl.sum(values * values, axis=1))
        score = tl.sum(largest, axis=0) / seen * norm
        tl.store(scores + head.to(tl.int64) * tokens + token, score, mask=token < tokens)

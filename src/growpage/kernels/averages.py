"""Both moving averages of a step's decode queries, rotated back, in one pass over the queries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from growpage.budget.rope import Rotary

_ELEMENTS = 1024  # pairs of one program


def update_averages(
    average: Tensor,
    queries: Tensor,
    rows: Tensor,
    slots: Tensor,
    positions: Tensor,
    rotary: Rotary,
    betas: Sequence[float],
) -> None:
    """Take a query for each of ``slots``, as ``Rotary.unrotate`` and ``QuerySummaries`` do.

    Queries are read where they were captured, and each is read once for both averages. The counts
    that the averages' bias correction needs are left to the caller.

    Equal to the reference up to the rounding of a few operations in float32: a difference of at
    most ``1e-6`` times the largest element of the query and of the old average of that head.

    Temporaries: none.

    Args:
        average: ``[slots, 2, layers, heads, dim]`` float32, short before long; updated in place.
        queries: ``[layers, places, heads, dim]`` of any float, rotated by their position.
        rows: ``[n]`` integers: where in ``places`` each query lies.
        slots: ``[n]`` integers, all different.
        positions: ``[n]`` integers: what each query is rotated by.
        rotary: the rotation; its ``rotary_dim`` may be less than ``dim``.
        betas: the decays, short before long.

    Raises:
        ValueError: shapes or dtypes are not as described.
    """
    layers, _, heads, dim = queries.shape
    rotary_dim = rotary.cos_sin.shape[-1]
    if average.dtype != torch.float32 or average.shape[1:] != (2, layers, heads, dim):
        raise ValueError(
            f"averages are {list(average.shape)} of {average.dtype}; queries of {layers} layers, "
            f"{heads} heads and size {dim} need [slots, 2, {layers}, {heads}, {dim}] of "
            "torch.float32"
        )
    if rotary_dim > dim or rotary_dim % 2:
        raise ValueError(f"the rotation has {rotary_dim} dimensions, and a head has {dim}")
    for name, tensor in (("averages", average), ("queries", queries), ("table", rotary.cos_sin)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"the {name}' last axis has stride {tensor.stride(-1)}; it must be 1")
    if len(slots) == 0:
        return
    half, rest = rotary_dim // 2, dim - rotary_dim
    width = triton.next_power_of_2(max(half, 1))
    at_once = max(1, min(_ELEMENTS // width, triton.next_power_of_2(heads)))
    short, long = (float(np.float32(1 - beta)) for beta in betas)
    _update[(len(slots), layers, triton.cdiv(heads, at_once))](
        average,
        queries,
        rows,
        slots,
        positions,
        rotary.cos_sin,
        short,
        long,
        heads,
        half,
        rest,
        *average.stride()[:4],
        *queries.stride()[:3],
        rotary.cos_sin.stride(0),
        NEOX=rotary.neox,
        HEADS=at_once,
        HALF=width,
        REST=triton.next_power_of_2(rest) if rest else 0,
    )


@triton.jit
def _lerp(old, new, weight):
    # As torch's, which is exact at both ends.
    return tl.where(weight < 0.5, old + weight * (new - old), new - (new - old) * (1 - weight))


@triton.jit
def _blend(average, long_average, query, short, long, mask):
    old = tl.load(average, mask=mask)
    tl.store(average, _lerp(old, query, short), mask=mask)
    old = tl.load(average + long_average, mask=mask)
    tl.store(average + long_average, _lerp(old, query, long), mask=mask)


@triton.jit
def _update(
    average,
    queries,
    rows,
    slots,
    positions,
    cos_sin,
    short,
    long,
    heads,
    half,
    rest,
    average_slot,
    average_kind,
    average_layer,
    average_head,
    queries_layer,
    queries_row,
    queries_head,
    table_row,
    NEOX: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    request, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + request).to(tl.int64)
    row = tl.load(rows + request).to(tl.int64)
    angles = cos_sin + tl.load(positions + request).to(tl.int64) * table_row
    head = tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    mine = (head < heads)[:, None]
    queries += layer * queries_layer + row * queries_row + head[:, None] * queries_head
    average += slot * average_slot + layer * average_layer + head[:, None] * average_head

    pair = tl.arange(0, HALF)
    turned = pair < half
    cos = tl.load(angles + pair, mask=turned, other=1.0).to(tl.float32)
    sin = tl.load(angles + half + pair, mask=turned, other=0.0).to(tl.float32)
    scale = cos * cos + sin * sin
    cos, sin = (cos / scale)[None, :], (-sin / scale)[None, :]
    if NEOX:
        first, second = pair[None, :], (half + pair)[None, :]
    else:
        first, second = (2 * pair)[None, :], (2 * pair + 1)[None, :]
    mask = mine & turned[None, :]
    x = tl.load(queries + first, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(queries + second, mask=mask, other=0.0).to(tl.float32)
    _blend(average + first, average_kind, x * cos - y * sin, short, long, mask)
    _blend(average + second, average_kind, y * cos + x * sin, short, long, mask)

    if REST:
        beyond = tl.arange(0, REST)
        mask = mine & (beyond < rest)[None, :]
        beyond = (2 * half + beyond)[None, :]
        x = tl.load(queries + beyond, mask=mask, other=0.0).to(tl.float32)
        _blend(average + beyond, average_kind, x, short, long, mask)

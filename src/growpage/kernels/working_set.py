"""Working sets and losses of attention rows without a sort, in exact integers.

Non-negative floats order as their bits do, so the weight that the working set ends at is found by
bisection: at most 30 times, and some ``log2(keys)`` times as a rule, the weights from some bits up
are summed. Sums are of whole multiples of ``2**-52``, which no order of summation can change.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch
import triton
import triton.language as tl
from torch import Tensor

_ONE = 1 << 52
_KEYS = 4096  # that one program looks at together


def working_sets(
    attention: Tensor, mass: float, capacities: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """``D_p`` of every row, and the mass that its best keys miss at each of ``capacities``.

    As ``keys_needed`` and ``1 - best_mass`` of :mod:`growpage.budget.working_set`. Every weight is
    taken as a whole multiple of ``2**-52``, cut off: exact from ``2**-28`` up. So equality is this:

    - ``D_p`` is the least number of keys whose weights, so cut off, sum to at least ``mass``;
    - it equals the reference's on every row in which no number of best keys holds a mass within
      ``keys * 2**-52`` of ``mass``, ties between weights included, and on every row of weights that
      are zero or at least ``2**-28`` and whose sums a double holds;
    - a loss differs from the reference's by at most ``keys * 2**-52``;
    - a row with a NaN in it has the size 1 and losses of NaN, as the reference.

    Temporaries: eight bytes for each size and loss.

    Args:
        attention: ``[..., keys]`` float32, contiguous, not negative, rows that sum to about 1.
        mass: ``p``, from 0 to 1. A row that sums to less needs all its keys.
        capacities: how many of the best keys a loss is wanted for, each from 1 to ``keys``.

    Returns:
        ``[...]`` int64 and ``[..., len(capacities)]`` float64.

    Raises:
        ValueError: arguments are not as described.
    """
    keys = attention.shape[-1]
    if attention.dtype != torch.float32 or not attention.is_contiguous():
        raise ValueError(
            f"attention is {attention.dtype} with strides {attention.stride()}; "
            "it must be torch.float32 and contiguous"
        )
    if not 0 <= mass <= 1:
        raise ValueError(f"mass is {mass}; it must be from 0 to 1")
    for capacity in capacities:
        if not 1 <= capacity <= keys:
            raise ValueError(f"a capacity is {capacity}; it must be from 1 to the {keys} keys")
    lead = attention.shape[:-1]
    sizes = torch.empty(lead, dtype=torch.int64, device=attention.device)
    held = torch.empty(*lead, len(capacities), dtype=torch.int64, device=attention.device)
    at = torch.tensor(capacities, dtype=torch.int64, device=attention.device)
    if sizes.numel() == 0:
        return sizes, held.double()
    block = min(_KEYS, triton.next_power_of_2(keys))
    _measure[(sizes.numel(),)](
        attention,
        at,
        sizes,
        held,
        keys,
        ceil(mass * _ONE),
        len(capacities),
        KEYS=block,
        num_warps=4 if block <= 1024 else 8,
    )
    lost = (_ONE - held).clamp_(min=0).double() / _ONE
    return sizes, lost.masked_fill_(held < 0, torch.nan)


@triton.jit
def _bits(attention, start, keys, KEYS: tl.constexpr):
    """The weights' bits, without a sign; past the end those of zero, which changes no sum."""
    key = start + tl.arange(0, KEYS)
    weight = tl.load(attention + key, mask=key < keys, other=0.0)
    return weight.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _units(bits):
    """What a weight of these bits is in units of 2**-52, cut off."""
    exponent = bits >> 23
    mantissa = ((bits & 0x7FFFFF) | 0x800000).to(tl.int64)
    up = tl.maximum(exponent - 98, 0).to(tl.int64)
    down = tl.minimum(tl.maximum(98 - exponent, 0), 31).to(tl.int64)
    return (mantissa << up) >> down


@triton.jit
def _total(attention, keys, least, KEYS: tl.constexpr):
    """Units and number of the weights whose bits are at least ``least``."""
    units = tl.zeros((KEYS,), tl.int64)
    number = tl.zeros((KEYS,), tl.int32)
    for start in range(0, keys, KEYS):
        bits = _bits(attention, start, keys, KEYS)
        units += tl.where(bits >= least, _units(bits), 0)
        number += (bits >= least).to(tl.int32)
    return tl.sum(units), tl.sum(number).to(tl.int64)


@triton.jit
def _last(attention, keys, top, wanted, BY_NUMBER: tl.constexpr, KEYS: tl.constexpr):
    """The largest bits from which up the weights, or their number, come to ``wanted``.

    Both ends of the search move to bits that the row has, so it ends when it has told the row's
    weights apart, and not the floats between them.
    """
    low, high = top - top, top
    while low < high:
        middle = low + (high - low + 1) // 2
        units = tl.zeros((KEYS,), tl.int64)
        above = tl.full((KEYS,), 0x7FFFFFFF, tl.int32)
        below = tl.zeros((KEYS,), tl.int32)
        for start in range(0, keys, KEYS):
            bits = _bits(attention, start, keys, KEYS)
            if BY_NUMBER:
                units += (bits >= middle).to(tl.int64)
            else:
                units += tl.where(bits >= middle, _units(bits), 0)
            above = tl.minimum(above, tl.where(bits >= middle, bits, 0x7FFFFFFF))
            below = tl.maximum(below, tl.where(bits >= middle, 0, bits))
        if tl.sum(units) >= wanted:
            low = tl.min(above)
        else:
            high = tl.max(below)
    return low


@triton.jit
def _measure(attention, capacities, sizes, held, keys, mass, losses, KEYS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    attention += row * keys
    sizes += row
    held += row * losses
    most = tl.zeros((KEYS,), tl.int32)
    for start in range(0, keys, KEYS):
        most = tl.maximum(most, _bits(attention, start, keys, KEYS))
    top = tl.max(most)
    if top >= 0x7F800000:  # NaN or infinite
        tl.store(sizes, 1)
        for index in range(0, losses):
            tl.store(held + index, -1)
    else:
        units, number = _total(attention, keys, 0, KEYS)
        if units < mass:
            tl.store(sizes, keys)
        else:
            edge = _last(attention, keys, top, mass, False, KEYS)
            units, number = _total(attention, keys, edge + 1, KEYS)
            weight = tl.maximum(_units(edge), 1)
            tied = (mass - units + weight - 1) // weight
            tl.store(sizes, tl.maximum(number + tied, 1))
        for index in range(0, losses):
            capacity = tl.load(capacities + index)
            edge = _last(attention, keys, top, capacity, True, KEYS)
            units, number = _total(attention, keys, edge + 1, KEYS)
            tl.store(held + index, units + (capacity - number) * _units(edge))

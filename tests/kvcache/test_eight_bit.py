"""8-bit pages: what the bytes mean, and that compaction moves them as they are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from growpage.kvcache.eight_bit import EightBitFloats, round_to_eight_bits
from growpage.kvcache.layout import LAYOUTS
from growpage.kvcache.paged import PagedCache, keep_survivors

LAYERS, POOL, HEADS, PAGE, DIM = 2, 4, 2, 32, 32
ALL = slice(0, LAYERS)
# Exponent bits, mantissa bits, exponent bias, and whether the last exponent holds infinities.
FORMATS = {torch.float8_e4m3fn: (4, 3, 7, False), torch.float8_e5m2: (5, 2, 15, True)}
formats = pytest.mark.parametrize("dtype", FORMATS, ids=str)


def number(code: int, dtype: torch.dtype) -> float:
    """What a byte stands for, from the format's definition."""
    exponents, mantissas, bias, infinite = FORMATS[dtype]
    sign = -1.0 if code >> 7 else 1.0
    exponent = (code >> mantissas) & ((1 << exponents) - 1)
    mantissa = code & ((1 << mantissas) - 1)
    if exponent == (1 << exponents) - 1:
        if infinite:
            return sign * math.inf if mantissa == 0 else math.nan
        if mantissa == (1 << mantissas) - 1:
            return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissas)
    return sign * (1 + mantissa / (1 << mantissas)) * 2.0 ** (exponent - bias)


def numbers(dtype: torch.dtype) -> Tensor:
    return torch.tensor([number(code, dtype) for code in range(256)])


def same(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found.nan_to_num(nan=1e9), expected.nan_to_num(nan=1e9))


@formats
def test_every_byte_decodes_to_its_number_times_the_scale_of_its_layer(dtype: torch.dtype) -> None:
    codes = EightBitFloats(dtype, [1.0, 0.25], [2.0, 0.1])
    stored = torch.arange(256, dtype=torch.uint8).view(1, 1, 256).repeat(2, 3, 1)
    for half, scales in ((0, [1.0, 0.25]), (1, [2.0, 0.1])):
        found = codes.decode(ALL, half, stored)
        for layer, scale in enumerate(scales):
            assert same(found[layer], (numbers(dtype) * scale).expand(3, 256))
        assert same(codes.decode(slice(1, 2), half, stored[1:]), found[1:])


@formats
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rounding_finds_the_nearest_number(dtype: torch.dtype, of: torch.dtype) -> None:
    finite = numbers(dtype)
    finite = finite[finite.isfinite()].double()
    generator = torch.Generator().manual_seed(0)
    given = (torch.randn(4000, generator=generator) * 2.0 ** torch.linspace(-12, 12, 4000)).to(of)
    rounded = round_to_eight_bits(given, dtype)
    assert rounded.dtype == of
    distance = (given.double().unsqueeze(1) - finite).abs()
    assert torch.equal((given.double() - rounded.double()).abs(), distance.amin(dim=1))
    assert torch.equal(round_to_eight_bits(rounded, dtype), rounded)


@formats
def test_rounding_never_leaves_what_is_finite(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    given = torch.tensor([1e30, -1e30, torch.inf, -torch.inf, most * 1.001])
    assert round_to_eight_bits(given, dtype).tolist() == [most, -most, most, -most, most]


@pytest.mark.parametrize("name", LAYOUTS)
def test_compaction_moves_any_bytes_as_they_are(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (LAYERS, POOL, HEADS, 2, PAGE * DIM)
    pages = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    cache = PagedCache(
        pages, LAYOUTS[name], DIM, EightBitFloats(torch.float8_e4m3fn, [3.0, 5.0], [7.0, 9.0])
    )
    before = pages.clone()
    source, target = torch.tensor([3, 1]), torch.tensor([1])
    keys, values = cache.stored_keys(ALL, source), cache.stored_values(ALL, source)
    rank = torch.rand(LAYERS, HEADS, 2 * PAGE, generator=generator).argsort(-1)
    survivors = rank[..., :PAGE].sort(-1).values
    numbers_before = cache.keys(ALL, source)
    keep_survivors(cache, ALL, target, keys, values, survivors)
    where = survivors.unsqueeze(-1).expand(-1, -1, -1, DIM)
    assert torch.equal(cache.stored_keys(ALL, target), keys.gather(2, where))
    assert torch.equal(cache.stored_values(ALL, target), values.gather(2, where))
    assert same(cache.keys(ALL, target), numbers_before.gather(2, where))
    others = [0, 2, 3]
    assert torch.equal(pages[:, others], before[:, others])

"""Page layouts against the kernels' index formulas, and the probe against lying kernels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from growpage.kvcache.layout import LAYOUTS, LayoutError, Tiling, WritePage, probe_layout

Places = tuple[Tensor, Tensor]
"""Where element (token, dim) is stored, of the keys and of the values: ``[tokens, dim]`` each."""


def amx(token: Tensor, dim: Tensor, tokens: int, size: int) -> Places:
    return (
        token // 16 * (16 * size) + dim // 2 * 32 + token % 16 * 2 + dim % 2,
        dim // 16 * (16 * tokens) + token // 2 * 32 + dim % 16 * 2 + token % 2,
    )


def vec(token: Tensor, dim: Tensor, tokens: int, size: int) -> Places:
    return dim * tokens + token, token * size + dim


FORMULAS: dict[str, Callable[[Tensor, Tensor, int, int], Places]] = {
    "amx": amx,
    "vec": vec,
    "vec16": vec,
}
PAGES = list(product([32, 128, 256], [64, 128, 256]))
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def places(name: str, tokens: int, dim: int) -> Places:
    token, column = torch.arange(tokens).view(-1, 1), torch.arange(dim).view(1, -1)
    return FORMULAS[name](token, column, tokens, dim)


def kernel(name: str, tokens: int, dim: int) -> WritePage:
    """A kernel that stores as it should, by the formulas."""
    where = places(name, tokens, dim)

    def write(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        stored = torch.zeros(2, tokens * dim, dtype=keys.dtype)
        for half, content in enumerate((keys, values)):
            stored[half, where[half].flatten()] = content.flatten()
        return stored[0], stored[1]

    return write


def tampered(write: WritePage, half: int, change: Callable[[Tensor], None]) -> WritePage:
    def lie(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        stored = write(keys, values)
        change(stored[half])
        return stored

    return lie


def test_every_layout_has_a_formula() -> None:
    assert FORMULAS.keys() == LAYOUTS.keys()


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("tokens", "dim"), [*PAGES, (16, 16), (96, 80)])
def test_pack_and_unpack_follow_the_formula(name: str, tokens: int, dim: int) -> None:
    natural = torch.arange(3 * tokens * dim, dtype=torch.int32).view(3, tokens, dim)
    layout = LAYOUTS[name]
    for tiling, where in zip((layout.keys, layout.values), places(name, tokens, dim), strict=True):
        assert tiling.fits(tokens, dim)
        stored = tiling.pack(natural)
        for page in range(3):
            assert torch.equal(stored[page][where], natural[page])
        assert torch.equal(tiling.unpack(stored, dim), natural)


tilings = st.builds(
    Tiling,
    st.sampled_from([1, 2, 16]),
    st.sampled_from([1, 2, 8]),
    st.permutations(range(4)).map(tuple),
)


@given(tilings, st.integers(1, 3), st.integers(1, 3), st.sampled_from([(), (2,), (2, 3)]))
def test_any_tiling_is_a_permutation(
    tiling: Tiling, token_tiles: int, dim_tiles: int, lead: tuple[int, ...]
) -> None:
    shape = (*lead, token_tiles * tiling.token_tile, dim_tiles * tiling.dim_tile)
    natural = torch.randperm(torch.Size(shape).numel()).view(shape)
    stored = tiling.pack(natural)
    assert stored.shape == (*lead, shape[-2] * shape[-1])
    assert torch.equal(tiling.unpack(stored, shape[-1]), natural)
    assert torch.equal(stored.flatten().sort().values, natural.flatten().sort().values)


# ---- the probe -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_probe_accepts_the_true_kernel(name: str, dtype: torch.dtype) -> None:
    for tokens, dim in PAGES:
        found = probe_layout(name, tokens, dim, dtype, kernel(name, tokens, dim))
        assert found is LAYOUTS[name]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("half", [0, 1], ids=["keys", "values"])
def test_probe_sees_a_single_wrong_element(name: str, dtype: torch.dtype, half: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for tokens, dim in PAGES:
        size = tokens * dim
        one, other = torch.randperm(size, generator=generator)[:2].tolist()

        def swap(stored: Tensor, pair: tuple[int, int]) -> None:
            stored[list(pair)] = stored[list(reversed(pair))]

        # Far apart, side by side, and exactly one digit of the numbering apart.
        for pair in ((one, other), (0, 1), (size - 2, size - 1), (0, 128), (0, size - 1)):
            lie = tampered(
                kernel(name, tokens, dim), half, lambda page, pair=pair: swap(page, pair)
            )
            with pytest.raises(LayoutError, match=f"stores {('keys', 'values')[half]} otherwise"):
                probe_layout(name, tokens, dim, dtype, lie)
        for place in (one, size - 1):
            lost = tampered(
                kernel(name, tokens, dim), half, lambda page, place=place: page[place].zero_()
            )
            with pytest.raises(LayoutError):
                probe_layout(name, tokens, dim, dtype, lost)


@pytest.mark.parametrize("name", LAYOUTS)
def test_probe_sees_that_the_first_element_is_missing(name: str) -> None:
    for half in (0, 1):
        lost = tampered(kernel(name, 32, 64), half, lambda page: page[0].zero_())
        with pytest.raises(LayoutError):
            probe_layout(name, 32, 64, torch.bfloat16, lost)


@pytest.mark.parametrize("name", LAYOUTS)
def test_probe_tells_the_halves_apart(name: str) -> None:
    write = kernel(name, 32, 64)
    with pytest.raises(LayoutError, match="stores keys otherwise"):
        probe_layout(name, 32, 64, torch.float32, lambda keys, values: write(values, keys)[::-1])


@pytest.mark.parametrize(("claimed", "real"), [("amx", "vec"), ("vec", "amx"), ("vec16", "amx")])
def test_probe_rejects_another_layout(claimed: str, real: str) -> None:
    with pytest.raises(
        LayoutError, match=f"the attention kernel '{claimed}' stores keys otherwise"
    ):
        probe_layout(claimed, 32, 64, torch.bfloat16, kernel(real, 32, 64))


def test_an_unknown_kernel() -> None:
    def never(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError("nothing to probe")

    with pytest.raises(LayoutError, match=r"'neon' stores .* known are amx, vec, vec16"):
        probe_layout("neon", 32, 64, torch.float32, never)
    for tokens, dim in ((24, 64), (33, 64), (32, 40), (32, 63)):
        with pytest.raises(
            LayoutError, match=f"pages of {tokens} tokens and head size {dim} cannot"
        ):
            probe_layout("amx", tokens, dim, torch.bfloat16, never)

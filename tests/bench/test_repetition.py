"""When an answer counts as a loop."""

from __future__ import annotations

import pytest

from growpage.bench.repetition import ends_in_a_loop


@pytest.mark.parametrize(
    ("tokens", "loops"),
    [
        ([7] * 48, True),
        ([7] * 47, False),
        ([1, 2, 3] * 16, True),
        (list(range(100)) + [1, 2, 3] * 16 + [1], True),
        ([1, 2, 3] * 16 + [9], False),
        (list(range(64)) * 4, True),
        (list(range(64)) * 3, False),
        (list(range(65)) * 6, False),
        (list(range(300)), False),
        ([], False),
    ],
)
def test_loops(tokens: list[int], loops: bool) -> None:
    assert ends_in_a_loop(tokens) == loops

"""Answers that have fallen into a loop."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 64
"""Tokens of the longest text that is looked for."""
REPEATS = 4
"""How often a text must stand at the end of an answer."""
SHORTEST = 48
"""Tokens that the repetitions must fill together: a row of dashes is no loop."""


def ends_in_a_loop(tokens: Sequence[int]) -> bool:
    """Whether an answer ends with a text of at most 64 tokens, four times or for 48 tokens.

    The larger of the two counts; the last repetition may be cut anywhere.
    """
    for period in range(1, LONGEST_PERIOD + 1):
        span = max(REPEATS * period, SHORTEST)
        if span > len(tokens):
            continue
        tail = tokens[-span:]
        if tail[period:] == tail[:-period]:
            return True
    return False

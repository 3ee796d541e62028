"""How far greedy outputs agree with a reference, at equal position.

Once one token differs, all later ones may: these are strict measures of sameness, not of quality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True)
class Agreement:
    """Shares between 0 and 1 of the reference's length."""

    common_prefix: float
    """Tokens before the first difference."""
    equal_tokens: float
    """Tokens that are equal to the reference's at their position."""


def agreement(output: Sequence[int], reference: Sequence[int]) -> Agreement:
    """One output against its reference, both token ids.

    A position that the output does not reach is a difference; what it has beyond the reference's
    end counts neither way, except after an empty reference, which only an empty output agrees with.
    """
    if not reference:
        same = float(not output)
        return Agreement(same, same)
    equal = [ours == theirs for ours, theirs in zip(output, reference, strict=False)]
    prefix = sum(1 for _ in takewhile(bool, equal))
    return Agreement(prefix / len(reference), sum(equal) / len(reference))


def mean_agreement(
    outputs: Mapping[str, Sequence[int]], references: Mapping[str, Sequence[int]]
) -> Agreement:
    """The mean over requests, each with the same weight.

    Raises:
        ValueError: the two do not hold the same requests, or none.
    """
    if outputs.keys() != references.keys() or not references:
        raise ValueError("outputs and references must be of the same requests, at least one")
    each = [agreement(outputs[name], reference) for name, reference in references.items()]
    return Agreement(
        sum(one.common_prefix for one in each) / len(each),
        sum(one.equal_tokens for one in each) / len(each),
    )

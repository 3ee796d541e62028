"""How far next-token distributions are from a reference's."""

from __future__ import annotations

import torch

LEAST_REST = 1e-6
"""Probability below which "any other token" is not resolved in float32 logprobs."""


def divergence(reference: torch.Tensor, replayed: torch.Tensor) -> torch.Tensor:
    """KL divergence of each position, in nats: [positions].

    Over the watched tokens and one class for all others, which bounds the KL over the whole
    vocabulary from below.

    Args:
        reference: logprobs of the watched tokens, [positions, watched].
        replayed: the same tokens' logprobs in the distribution that is judged.
    """
    p, q = _with_rest(reference), _with_rest(replayed)
    return (p.exp() * (p - q)).sum(-1)


def exact_divergence(reference: torch.Tensor, replayed: torch.Tensor) -> torch.Tensor:
    """KL divergence over the whole vocabulary, in nats: [positions].

    Args:
        reference: logprobs of every token, [positions, vocabulary], in float32.
        replayed: the same in the distribution that is judged.
    """
    # A token that is impossible in the reference adds nothing, also where it is impossible in both.
    return (reference.exp() * (reference - replayed)).nan_to_num_(nan=0.0).sum(-1)


def _with_rest(logprobs: torch.Tensor) -> torch.Tensor:
    exact = logprobs.double()
    rest = (1 - exact.exp().sum(-1, keepdim=True)).clamp_min(LEAST_REST)
    return torch.cat([exact, rest.log()], dim=-1)

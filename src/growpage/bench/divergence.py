"""How far next-token distributions are from a reference's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from statistics import fmean, quantiles

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


def ratio_interval(
    kl: Mapping[str, float], base: Mapping[str, float], seed: int = 0, draws: int = 4000
) -> tuple[float, float]:
    """90% bootstrap interval of mean(kl) / mean(base), drawn over requests that both have served.

    Args:
        kl: a request's mean divergence under one policy, by its name.
        base: the same under the policy that it is compared to.
        seed: of the draws.
        draws: how many.
    """
    chance, names = random.Random(seed), list(kl)
    ratios = []
    for _ in range(draws):
        drawn = chance.choices(names, k=len(names))
        ratios.append(fmean(kl[name] for name in drawn) / fmean(base[name] for name in drawn))
    cuts = quantiles(ratios, n=20)
    return cuts[0], cuts[-1]


def _with_rest(logprobs: torch.Tensor) -> torch.Tensor:
    exact = logprobs.double()
    rest = (1 - exact.exp().sum(-1, keepdim=True)).clamp_min(LEAST_REST)
    return torch.cat([exact, rest.log()], dim=-1)

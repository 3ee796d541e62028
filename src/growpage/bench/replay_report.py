"""What a finished measurement of replays says: figures, comparisons and their intervals.

Everything is computed over requests: a contender's KL is the mean over requests of each one's mean
over its tokens, and its memory the mean over requests of the bytes that each one held on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np

from growpage.bench.contenders import BASELINE
from growpage.bench.forced_replay import RequestReplay, perplexity
from growpage.bench.replay import Measurement, Part
from growpage.bench.statistics import Estimate, estimate, mean, ratio

LEAST_KL = 1e-9
"""Below it a mean KL is zero, as far as its logarithm goes."""


def at_equal_memory(
    kl: Mapping[str, float],
    held: Mapping[str, float],
    baseline: Sequence[tuple[Mapping[str, float], Mapping[str, float]]],
    seed: int = 0,
) -> Estimate | None:
    """Ratio of the mean KL to what the baseline has at the same mean memory.

    The baseline's KL between two of its points is interpolated, logarithm over logarithm.

    Args:
        kl: by request.
        held: bytes by request.
        baseline: the same two of each of its points.
        seed: of the bootstrap.

    Returns:
        None if there are no two points of which one holds less, or as much, and one more.
    """
    memory = float(np.mean(list(held.values())))
    points = sorted(baseline, key=lambda point: float(np.mean(list(point[1].values()))))
    for below, above in pairwise(points):
        low, high = (float(np.mean(list(point[1].values()))) for point in (below, above))
        if low <= memory <= high and low < high:
            return estimate(_interpolated, seed, kl, held, *below, *above)
    return None


def _interpolated(kl: Any, held: Any, kl_0: Any, held_0: Any, kl_1: Any, held_1: Any) -> Any:
    ours, low, high = (_log_mean(each) for each in (kl, kl_0, kl_1))
    at, start, end = (_log_mean(each) for each in (held, held_0, held_1))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(end == start, 0.0, (at - start) / (end - start))
    return np.exp(ours - (low + share * (high - low)))


def _log_mean(figures: Any) -> Any:
    return np.log(np.maximum(figures.mean(axis=-1), LEAST_KL))


def summarise(
    measurement: Measurement, *, base: str | None = None, seed: int = 0
) -> dict[str, Any]:
    """The report, ready for JSON.

    Args:
        measurement: what was measured.
        base: a contender that every other is compared to as it is.
        seed: of the bootstrap.
    """
    reference, setup = measurement.reference, measurement.setup
    answers = reference.answers
    loads = list(dict.fromkeys(part.load for part in measurement.parts))
    return {
        "setup": setup.model_dump(),
        "kl": _kind_of_kl(measurement),
        "intervals": "95%, paired bootstrap over requests",
        "reference": {
            **reference.usage.model_dump(),
            "perplexity": perplexity(
                [answer.logprob for answer in answers.values()],
                [len(answer.tokens) for answer in answers.values()],
            ),
            **measurement.reference_provenance.model_dump(),
            "requests": {
                name: {
                    "family": measurement.families[name],
                    "prompt_tokens": len(answer.prompt),
                    "answer_tokens": len(answer.tokens),
                }
                for name, answer in answers.items()
            },
        },
        "peak_need_of_full": measurement.need,
        "arrivals": {load: setup.arrivals(load) for load in loads},
        "loads": {load: _load(measurement, load, base, seed) for load in loads},
    }


def _kind_of_kl(measurement: Measurement) -> str:
    if not measurement.setup.exact:
        return (
            f"over the {measurement.setup.top} likeliest tokens and one class for all others: "
            "a lower bound"
        )
    files = [answer.whole for answer in measurement.reference.answers.values() if answer.whole]
    return f"exact, over the whole vocabulary of {files[0].vocabulary} tokens"


def _load(measurement: Measurement, load: str, base: str | None, seed: int) -> dict[str, Any]:
    parts = [part for part in measurement.parts if part.load == load]
    families = measurement.families
    kinds = sorted({family for family in families.values() if family is not None})
    return {
        part.contender.name: {
            "contender": part.contender.model_dump(),
            "line": part.contender.line,
            "pool_pages": part.pool_pages,
            "concurrency": part.concurrency,
            "page_bytes": part.page_bytes,
            "pool": part.replay.usage.model_dump(),
            **_figures(measurement, part, parts, list(families), base, seed),
            "families": {
                kind: _figures(
                    measurement,
                    part,
                    parts,
                    [name for name, family in families.items() if family == kind],
                    base,
                    seed,
                )
                for kind in kinds
            },
            "requests": {name: each.model_dump() for name, each in part.replay.requests.items()},
            "provenance": part.provenance.model_dump(),
        }
        for part in parts
    }


def _figures(
    measurement: Measurement,
    part: Part,
    parts: Sequence[Part],
    names: Sequence[str],
    base: str | None,
    seed: int,
) -> dict[str, Any]:
    """A contender's figures over some requests, and how it compares."""
    replays = [part.replay.requests[name] for name in names]
    kl, held = _kl(part, names), _bytes(part, names)
    baseline = [
        (_kl(other, names), _bytes(other, names))
        for other in parts
        if other.contender.line == BASELINE
    ]
    equal = None if part.contender.line == BASELINE else at_equal_memory(kl, held, baseline, seed)
    plain = next((_kl(each, names) for each in parts if each.contender.name == base), None)
    answers = [measurement.reference.answers[name] for name in names]
    return {
        "kl": asdict(mean(kl, seed)),
        "worst_kl": max(kl.values()),
        "agreement": _mean(each.agreement for each in replays),
        "perplexity": perplexity(
            [each.logprob for each in replays], [len(answer.tokens) for answer in answers]
        ),
        "mean_pages": _mean(each.held.mean_pages for each in replays),
        "peak_pages": max(each.held.peak_pages for each in replays),
        "mean_bytes": _mean(held.values()),
        "peak_bytes": max(each.held.peak_pages for each in replays) * part.page_bytes,
        "preemptions": sum(each.held.preemptions for each in replays),
        "ratio_at_equal_memory": _ratio(equal),
        "ratio_to_base": (
            None if plain is None or part.contender.name == base else _ratio(ratio(kl, plain, seed))
        ),
    }


def _ratio(found: Estimate | None) -> dict[str, Any] | None:
    """Nothing where a KL of zero is divided by."""
    if found is None or not all(map(isfinite, asdict(found).values())):
        return None
    return {**asdict(found), "resolved": found.resolves(1)}


def _kl(part: Part, names: Iterable[str]) -> dict[str, float]:
    return {name: part.replay.requests[name].kl for name in names}


def _bytes(part: Part, names: Iterable[str]) -> dict[str, float]:
    return {name: _held_bytes(part.replay.requests[name], part) for name in names}


def _held_bytes(request: RequestReplay, part: Part) -> float:
    return request.held.mean_pages * part.page_bytes


def _mean(figures: Iterable[float]) -> float:
    return float(np.mean(list(figures)))

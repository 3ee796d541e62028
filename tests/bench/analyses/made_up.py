"""Measurements and observations that no engine made, with known answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from growpage.bench.analyses.observe import Course, Observed, Point, contender
from growpage.bench.contenders import Contender
from growpage.bench.forced_replay import Answer, Held, Reference, Replay, RequestReplay, Usage
from growpage.bench.replay import Measurement, Part, Provenance, Setup
from growpage.budget.demand import Demand

PROVENANCE = Provenance(date="2026-01-01T00:00:00+00:00", machine={"cores": 1}, versions={})
USAGE = Usage(
    steps=100,
    mean_pages=4,
    peak_pages=8,
    preemptions=0,
    recomputed_tokens=0,
    compressions=0,
    evicted_tokens=0,
)


def answer(length: int) -> Answer:
    return Answer(
        prompt=[1] * (length // 2),
        tokens=[2] * (length - length // 2),
        logprob=-0.5,
        watched=[],
        logprobs=[],
        whole=None,
    )


def part(who: Contender, kl: Mapping[str, float], held: Mapping[str, float]) -> Part:
    return Part(
        contender=who,
        load="saturated",
        pool_pages=100,
        concurrency=8,
        page_bytes=1024,
        replay=Replay(
            requests={
                name: RequestReplay(
                    kl=value,
                    agreement=1,
                    logprob=-0.5,
                    held=Held(mean_pages=held[name], peak_pages=round(held[name]), preemptions=0),
                )
                for name, value in kl.items()
            },
            usage=USAGE,
        ),
        provenance=PROVENANCE,
    )


def measurement(
    lengths: Mapping[str, int],
    parts: list[Part],
    families: Mapping[str, str | None] | None = None,
) -> Measurement:
    return Measurement(
        setup=Setup(
            model="made-up",
            prompts="0",
            requests=len(lengths),
            new_tokens=200,
            temperature=0,
            concurrency=8,
            mean_gap=25,
            exact=False,
            top=20,
        ),
        reference=Reference(
            answers={name: answer(length) for name, length in lengths.items()}, usage=USAGE
        ),
        reference_provenance=PROVENANCE,
        families=dict(families or dict.fromkeys(lengths)),
        need={"saturated": 100},
        parts=parts,
    )


def course(shorts: Sequence[float], deltas: Sequence[float], prompt: int = 64) -> Course:
    """Measured once a page of 32 from the prompt on."""
    return Course(
        prompt_tokens=prompt,
        answer_tokens=32 * len(shorts),
        points=[
            Point(
                position=prompt + 32 * (at + 1) - 1,
                demand=Demand(
                    short=short,
                    long=short - delta,
                    cached=prompt + 32 * (at + 1) - 1,
                    losses=(0.01, 0.02),
                    entropy=2.0 + at / 10,
                    density=0.5,
                ),
            )
            for at, (short, delta) in enumerate(zip(shorts, deltas, strict=True))
        ],
    )


def observed(courses: Mapping[str, Course], mass: float = 0.9) -> Observed:
    return Observed(
        setup=measurement({"only": 100}, []).setup,
        contender=contender(mass),
        courses=dict(courses),
        provenance=PROVENANCE,
    )

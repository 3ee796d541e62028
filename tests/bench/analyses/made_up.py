"""Measurements and observations that no engine made, with known answers."""

from __future__ import annotations

from collections.abc import Mapping

from growpage.bench.contenders import Contender
from growpage.bench.forced_replay import Answer, Held, Reference, Replay, RequestReplay, Usage
from growpage.bench.replay import Measurement, Part, Provenance, Setup

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


def part(contender: Contender, kl: Mapping[str, float], held: Mapping[str, float]) -> Part:
    return Part(
        contender=contender,
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

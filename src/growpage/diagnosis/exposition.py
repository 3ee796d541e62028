"""Evidence from Prometheus's text format: what ``/metrics`` of a server says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from growpage.diagnosis.evidence import Engine, EngineBuilder

ENGINE_PREFIXES = ("vllm:", "growpage_")


@dataclass(frozen=True)
class Scrape:
    """What a server's ``/metrics`` said at one moment."""

    time: float
    """Unix time in seconds."""
    text: str


def from_exposition(scrapes: Sequence[Scrape]) -> tuple[Engine, ...]:
    """The engines behind some scrapes of one server, oldest first.

    Only series of vLLM and growpage with the label ``engine`` count.

    Raises:
        ValueError: a text is not in Prometheus's format.
    """
    builders: dict[str, EngineBuilder] = {}
    declared: set[str] = set()
    for scrape in scrapes:
        for family in text_string_to_metric_families(scrape.text):
            if not family.name.startswith(ENGINE_PREFIXES):
                continue
            declared.add(family.name)
            _add(family, scrape.time, builders)
    return tuple(
        builders[name].build(frozenset(declared)) for name in sorted(builders, key=_numbers_first)
    )


def _add(family: Metric, time: float, builders: dict[str, EngineBuilder]) -> None:
    for sample in family.samples:
        number = sample.labels.get("engine")
        if number is None:
            continue
        builder = builders.setdefault(number, EngineBuilder(f"engine {number}"))
        builder.add(sample.name, sample.labels, time, sample.value)


def _numbers_first(name: str) -> tuple[int, str]:
    return (int(name), name) if name.isdecimal() else (1 << 31, name)

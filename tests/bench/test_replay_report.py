"""What a report says of made-up measurements whose answer is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import exp

import numpy as np
import pytest
from rich.console import Console

from growpage.bench.contenders import Contender
from growpage.bench.forced_replay import Answer, Held, Reference, Replay, RequestReplay, Usage
from growpage.bench.look import to_png
from growpage.bench.replay import Measurement, Part, Provenance, Setup
from growpage.bench.replay_figure import replay_figure
from growpage.bench.replay_report import at_equal_memory, summarise
from growpage.bench.replay_table import tables

NAMES = [f"r{index}" for index in range(40)]
HARDNESS = dict(zip(NAMES, np.random.default_rng(0).lognormal(size=40).tolist(), strict=True))
USAGE = Usage(
    steps=9,
    mean_pages=3.0,
    peak_pages=5,
    preemptions=0,
    recomputed_tokens=0,
    compressions=2,
    evicted_tokens=64,
)
HERE = Provenance(date="2026-01-01T00:00:00+00:00", machine={}, versions={})
PAGE_BYTES = 2**20


def power_law(memory: float, factor: float = 1.0) -> dict[str, float]:
    """KL of each request that falls with the cube of the memory."""
    return {name: factor * hard * memory**-3 for name, hard in HARDNESS.items()}


def held(memory: float) -> dict[str, float]:
    return dict.fromkeys(NAMES, memory)


POINTS = [(power_law(memory), held(memory)) for memory in (8.0, 2.0, 4.0)]


@pytest.mark.parametrize("memory", [2.0, 2.5, 3.9, 4.0, 6.3, 8.0])
def test_half_the_loss_at_the_same_memory_is_a_half(memory: float) -> None:
    found = at_equal_memory(power_law(memory, 0.5), held(memory), POINTS)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize("memory", [1.9, 8.1])
def test_nothing_is_extrapolated(memory: float) -> None:
    assert at_equal_memory(power_law(memory), held(memory), POINTS) is None
    assert at_equal_memory(power_law(3), held(3), POINTS[:1]) is None


def test_noise_is_not_resolved() -> None:
    chance = np.random.default_rng(1)
    noisy = {name: kl * chance.lognormal(0, 0.5) for name, kl in power_law(3.0).items()}
    found = at_equal_memory(noisy, held(3.0), POINTS)
    assert found is not None and not found.resolves(1)


def test_memory_that_varies_with_the_requests_is_drawn_with_them() -> None:
    chance = np.random.default_rng(2)
    unequal = {name: 3.0 * chance.lognormal(0, 0.3) for name in NAMES}
    found = at_equal_memory(power_law(3.0), unequal, POINTS)
    assert found is not None
    assert found.low < found.value * 0.99 and found.high > found.value * 1.01


def test_a_line_is_a_policy_without_its_dials() -> None:
    lines = [
        Contender.of(text).line
        for text in (
            "fixed:budget=64",
            "fixed:budget=128,pool=50%",
            "fixed:budget=64,score=random",
            "every:growth_rate=0.5",
            "fixed:budget=64,kv_cache_dtype=fp8",
            "plain",
        )
    ]
    assert lines == [
        "fixed",
        "fixed",
        "fixed: score=random",
        "every",
        "fixed: kv_cache_dtype=fp8",
        "plain",
    ]


def part(text: str, kl: Mapping[str, float], pages: float, page_bytes: int = PAGE_BYTES) -> Part:
    requests = {
        name: RequestReplay(
            kl=kl[name],
            agreement=0.75,
            logprob=-0.5 - kl[name],
            held=Held(mean_pages=pages, peak_pages=int(pages) + 1, preemptions=name == "r3"),
        )
        for name in NAMES
    }
    return Part(
        contender=Contender.of(text),
        load="saturated",
        pool_pages=20,
        concurrency=4,
        page_bytes=page_bytes,
        replay=Replay(requests=requests, usage=USAGE),
        provenance=HERE,
    )


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    """`elastic` loses half of `fixed`; 8-bit pages hold twice as many; `sometimes` wins on half."""
    families = {name: ("easy", "hard")[index % 2] for index, name in enumerate(NAMES)}
    mixed = {
        name: kl * (0.1 if families[name] == "easy" else 10) for name, kl in power_law(4).items()
    }
    answer = Answer(
        prompt=[1, 2], tokens=[3, 4, 5], logprob=-0.5, watched=[], logprobs=[], whole=None
    )
    return Measurement(
        setup=Setup(
            model="tiny",
            prompts="0",
            requests=len(NAMES),
            new_tokens=3,
            temperature=0,
            concurrency=4,
            mean_gap=5,
            exact=False,
            top=20,
        ),
        reference=Reference(answers=dict.fromkeys(NAMES, answer), usage=USAGE),
        reference_provenance=HERE,
        families=families,
        need={"saturated": 40},
        parts=[
            part("full", dict.fromkeys(NAMES, 0.0), 10),
            part("fixed:budget=96", power_law(3), 3),
            part("fixed:budget=192", power_law(6), 6),
            part("elastic", power_law(4, 0.5), 4),
            part("eight=elastic:kv_cache_dtype=fp8", power_law(8), 8, PAGE_BYTES // 2),
            part("sometimes=every", mixed, 4),
        ],
    )


def test_figures_and_ratios(measurement: Measurement) -> None:
    rows = summarise(measurement, base="fixed:budget=96")["loads"]["saturated"]
    elastic, eight = rows["elastic"], rows["eight"]
    assert elastic["kl"]["value"] == pytest.approx(np.mean(list(power_law(4, 0.5).values())))
    assert elastic["worst_kl"] == max(power_law(4, 0.5).values())
    assert elastic["agreement"] == 0.75
    assert elastic["perplexity"] == pytest.approx(exp(0.5 + elastic["kl"]["value"]))
    assert (elastic["mean_pages"], elastic["peak_pages"], elastic["preemptions"]) == (4, 5, 1)
    assert (elastic["mean_bytes"], elastic["peak_bytes"]) == (4 * PAGE_BYTES, 5 * PAGE_BYTES)
    assert elastic["ratio_at_equal_memory"]["value"] == pytest.approx(0.5)
    assert elastic["ratio_at_equal_memory"]["resolved"] is True
    assert elastic["ratio_to_base"]["value"] == pytest.approx(0.5 * (3 / 4) ** 3)

    assert eight["mean_bytes"] == elastic["mean_bytes"], "8-bit pages have half the bytes"
    assert eight["ratio_at_equal_memory"]["value"] == pytest.approx(1 / 8)

    assert rows["full"]["ratio_at_equal_memory"] is None, "it holds more than any fixed budget"
    assert rows["fixed:budget=192"]["ratio_at_equal_memory"] is None, "it is the baseline itself"
    assert rows["fixed:budget=96"]["ratio_to_base"] is None


def test_families_are_told_apart(measurement: Measurement) -> None:
    every = summarise(measurement)["loads"]["saturated"]["sometimes"]
    easy, hard = (every["families"][kind]["ratio_at_equal_memory"] for kind in ("easy", "hard"))
    assert (easy["value"], hard["value"]) == pytest.approx((0.1, 10))


def test_a_loss_over_none_is_no_ratio(measurement: Measurement) -> None:
    report = summarise(measurement, base="full")
    assert report["loads"]["saturated"]["elastic"]["ratio_to_base"] is None
    json.dumps(report, allow_nan=False)


def test_the_report_says_which_kl_it_is(measurement: Measurement) -> None:
    assert summarise(measurement)["kl"].startswith("over the 20 likeliest tokens")


def test_the_table_says_what_is_not_resolved(measurement: Measurement) -> None:
    chance = np.random.default_rng(1)
    noisy = {name: kl * chance.lognormal(0, 0.5) for name, kl in power_law(4).items()}
    noise = part("noise=growpage", noisy, 4)
    more = measurement.model_copy(update={"parts": [*measurement.parts, noise]})
    console = Console(width=200, record=True)
    with console.capture() as text:
        for table in tables(summarise(more)):
            console.print(table)
    lines = [line.rstrip() for line in text.get().splitlines()]
    assert [line for line in lines if "load" in line] == [
        "saturated load",
        "saturated load, easy",
        "saturated load, hard",
    ]
    first = {line.split()[0]: line for line in lines[2 : 3 + len(more.parts)] if line}
    assert "not resolved" in first["noise"]
    assert "0.50 [0.50, 0.50]" in first["elastic"]
    assert "not resolved" not in first["elastic"]


def test_the_figure_has_a_line_for_each_policy(measurement: Measurement) -> None:
    figure = replay_figure(summarise(measurement))
    (panel,) = figure.axes
    assert panel.get_yscale() == "log"
    drawn = {
        container.get_label(): container.lines[0].get_xdata() for container in panel.containers
    }
    assert list(drawn["fixed"]) == [3, 6]
    assert list(drawn["elastic: kv_cache_dtype=fp8"]) == [4]
    assert "full" not in drawn, "zero has no place on a logarithmic axis"
    assert [line.get_label() for line in panel.lines if line.get_label() == "full: nothing lost"]
    assert to_png(figure).startswith(b"\x89PNG")

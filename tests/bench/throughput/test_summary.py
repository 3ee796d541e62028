"""Comparisons of made-up runs, their tables, JSON and figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from growpage.bench.throughput import figures, report
from growpage.bench.throughput.load import OpenLoop
from growpage.bench.throughput.protocol import EngineFigures
from growpage.bench.throughput.summary import Run, compare, crossovers
from tests.bench.throughput.made_up import run_of

PNG = b"\x89PNG\r\n\x1a\n"


def drifting_runs() -> list[Run]:
    """``ours`` is always half as fast again, on a machine that gets slower with each round."""
    return [
        run
        for number, slow in ((1, 1.0), (2, 0.5), (3, 0.25))
        for run in (
            run_of("plain", 100 * slow, number=number),
            run_of("ours", 150 * slow, number=number),
        )
    ]


def test_ratios_are_paired_so_that_drift_cancels() -> None:
    (comparison,) = compare(drifting_runs(), "plain")
    ratio = comparison.ratio("ours")
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    assert comparison.ratio("plain") is None
    assert comparison.summaries["plain"].mean_tokens_per_s == pytest.approx(175 / 3)
    assert comparison.summaries["ours"].output_tokens_per_s == pytest.approx(
        {"1": 150, "2": 75, "3": 37.5}
    )


def test_the_slowest_tokens_are_compared_by_round_too() -> None:
    (comparison,) = compare(drifting_runs(), "plain")
    ratio = comparison.tpot_p99_ratio("ours")
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert comparison.tpot_p99_ratio("plain") is None
    found = report.to_dict(comparison)["contenders"]
    assert found["ours"]["tpot_p99_ratio"]["value"] == pytest.approx(0.6667)
    assert found["plain"]["tpot_p99_ratio"] is None


def test_failed_answers_do_not_count_as_throughput() -> None:
    run = run_of("plain", 100)
    (good,) = run.measurement.traces
    cut = good.model_copy(update={"request": "0001", "wanted_tokens": 500})
    both = run.measurement.model_copy(update={"traces": [good, cut]})
    (comparison,) = compare([replace(run, measurement=both)], "plain")
    summary = comparison.summaries["plain"]
    assert summary.mean_tokens_per_s == pytest.approx(100)
    assert summary.requests_per_s == pytest.approx({"1": 1.0})
    assert summary.failures == ["request 0001 in round 1: 100 of 500 tokens"]


def test_engine_figures_are_means_over_rounds_and_peaks_their_largest() -> None:
    runs = [
        run_of(
            "ours",
            100,
            number=number,
            engine=EngineFigures(preemptions=number, peak_resident=10 * number, seconds=seconds),
        )
        for number, seconds in ((1, {"compact": 0.01}), (2, {"compact": 0.03}))
    ]
    (comparison,) = compare(runs, "ours")
    found = report.to_dict(comparison)["contenders"]["ours"]
    assert found["preemptions"] == 1.5
    assert found["peak_resident"] == 20
    assert found["compact_share"] == pytest.approx(0.02)  # 0.04 s of 2 s
    assert found["measure_share"] is None
    assert found["mean_pages"] is None
    assert found["load_average"] == 1.5


def test_table_and_headlines_name_every_contender() -> None:
    comparisons = compare(drifting_runs(), "plain")
    console = Console(width=120, record=True, file=None)
    with console.capture() as captured:
        console.print(report.table(comparisons[0]))
    shown = captured.get()
    assert "ratio to plain" in shown
    assert "1.50 [1.50, 1.50]" in shown
    assert "TTFT p99, ms" in shown
    assert "preemptions" not in shown  # nobody knows them
    assert report.headlines(comparisons) == [
        "8 clients, a pool of 20 pages (20% of the need): tokens/s relative to plain: "
        "ours 1.50 [1.50, 1.50]."
    ]


def test_each_run_is_one_line_while_the_others_go_on() -> None:
    assert report.progress(run_of("ours", 50, number=3)) == (
        "8 clients, pool 20%, round 3, ours: 50.0 output tokens/s in 2 s"
    )


def test_one_round_has_no_interval() -> None:
    (comparison,) = compare([run_of("plain", 100), run_of("ours", 120)], "plain")
    assert report.headlines([comparison])[0].endswith("relative to plain: ours 1.20.")


def sweep_of_pools() -> list[Run]:
    speeds = {20: (50, 100), 60: (80, 100), 100: (120, 100)}
    return [
        run_of(name, speed, pool=pool)
        for pool, both in speeds.items()
        for name, speed in zip(("plain", "ours"), both, strict=True)
    ]


def test_a_sweep_of_pools_has_a_crossover_and_a_figure() -> None:
    comparisons = compare(sweep_of_pools(), "plain")
    assert len(comparisons) == 3
    # From 1.25 at 60% to 100/120 at 100%: it is 1 at 60% of the way.
    found = crossovers(comparisons)
    assert list(found) == ["ours"]
    assert found["ours"].at == pytest.approx(0.84)
    assert report.crossovers_to_dict(comparisons)[0]["pool_share"] == pytest.approx(0.84)
    assert report.headlines(comparisons)[-1] == (
        "8 clients: ours against plain: it pays below a pool of 84% of the need, and not above."
    )
    drawn = figures.draw(comparisons)
    assert list(drawn) == ["pools-8-clients.png"]
    assert drawn["pools-8-clients.png"].startswith(PNG)
    axes = figures.pools_figure(comparisons).axes[1]
    assert [text.get_text() for text in axes.texts] == ["84%"]


def test_a_sweep_of_rates_has_its_figure() -> None:
    runs = [
        run_of(name, speed, load=OpenLoop(rate=rate))
        for rate in (1.0, 2.0)
        for name, speed in (("plain", 100), ("ours", 120))
    ]
    drawn = figures.draw(compare(runs, "plain"))
    assert list(drawn) == ["rates-pool-20%.png"]
    speed, *waits = figures.rates_figure(compare(runs, "plain")).axes
    assert [line.get_ydata().tolist() for line in speed.lines] == [[100, 100], [120, 120]]
    assert len(waits) == 2


def test_long_answers_have_a_figure_by_length() -> None:
    runs = [run_of("plain", 50, tokens=2200), run_of("ours", 100, tokens=2200)]
    (comparison,) = compare(runs, "plain")
    assert list(figures.draw([comparison])) == ["lengths-8-clients-pool-20%.png"]
    (axes,) = figures.lengths_figure(comparison).axes
    plain, ours = (line.get_ydata().tolist() for line in axes.lines)
    assert plain == pytest.approx([20] * 9)
    assert ours == pytest.approx([10] * 9)
    found = report.to_dict(comparison)["contenders"]["ours"]["ms_per_token_by_length"]
    assert found[0] == pytest.approx(10)


def test_one_setting_needs_no_figure() -> None:
    assert figures.draw(compare(drifting_runs(), "plain")) == {}

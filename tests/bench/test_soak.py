"""What a soak sends and how it judges; the soak itself is in tests/cli/test_serve_under_load.py."""

from __future__ import annotations

from itertools import islice

from growpage.bench.server import parse_metrics
from growpage.bench.soak import (
    ALLOWED_GROWTH,
    BLOCK,
    MAX_MODEL_LEN,
    POOL_PAGES,
    SHARES,
    Kind,
    Load,
    Memory,
    SoakReport,
    make_requests,
)


def test_every_kind_of_request_is_sent_and_the_same_ones_for_a_seed() -> None:
    requests = list(islice(make_requests(Load()), 300))
    assert {request.kind for request in requests} == set(SHARES)
    assert requests == list(islice(make_requests(Load()), 300))
    assert requests != list(islice(make_requests(Load(seed=1)), 300))


def test_only_the_prompts_that_should_be_too_long_are() -> None:
    pool = POOL_PAGES * BLOCK
    for request in islice(make_requests(Load()), 1000):
        prompt = len(request.prompt)
        assert (prompt > MAX_MODEL_LEN) == (request.kind is Kind.OVER_LENGTH)
        assert (pool < prompt <= MAX_MODEL_LEN) == (request.kind is Kind.OVER_POOL)
        if request.kind is Kind.OVER_POOL:
            assert prompt + request.max_tokens <= MAX_MODEL_LEN


def test_a_leak_is_a_problem_and_what_a_start_takes_is_not() -> None:
    step = ALLOWED_GROWTH // 40
    leak = Memory.of([step * sample for sample in range(100)])
    assert leak.growth == 50 * step
    start = Memory.of([0.0] * 25 + [100 * step] * 75)
    assert (start.start, start.end, start.growth) == (0, 100 * step, 0)
    report = SoakReport(memory={"leaks": leak, "starts": start})
    (problem,) = report.problems
    assert problem.startswith("leaks grew by 30.0 MiB")


def test_work_left_over_is_a_problem() -> None:
    report = SoakReport(unrest={"vllm:num_requests_running": 1.0})
    assert report.problems == ["vllm:num_requests_running is 1 at rest"]


def test_metrics_are_summed_over_their_labels() -> None:
    text = '# HELP a b\na_total{x="1"} 2.0\na_total{x="}"} 3.5\nb 1e+06\nc_bucket{le="+Inf"} 4\n'
    assert parse_metrics(text) == {"a_total": 5.5, "b": 1e6, "c_bucket": 4}

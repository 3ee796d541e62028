"""Every check, where it fires and where it does not, on texts such as a server exports."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import growpage.diagnosis
from growpage.budget.config import BudgetConfig
from growpage.diagnosis.checks import ENGINE_CHECKS, EVIDENCE_CHECKS
from growpage.diagnosis.evidence import Evidence, TargetFacts
from growpage.diagnosis.exposition import Scrape, from_exposition
from growpage.diagnosis.finding import Finding, Status
from growpage.diagnosis.prometheus import CACHE_CONFIG, VLLM_METRICS
from growpage.diagnosis.run import diagnose
from growpage.telemetry.catalogue import METRICS, exposed_names
from tests.diagnosis.exporter import CACHE, MODE, Values, evidence_of, two_samples

PLAIN = Path(__file__).parents[1] / "data/vllm-0.32-exposition.txt"

OK, WARNING, FAILURE, UNKNOWN = Status.OK, Status.WARNING, Status.FAILURE, Status.UNKNOWN

WAITING = 'vllm:num_requests_waiting_by_reason{reason="capacity"}'
COMPRESSIONS = 'growpage_compressions{reason="boundary",mode="enforce"}'
SHORT: Values = {"vllm:kv_cache_usage_perc": 0.98}
"""The pool is full; with preemptions beside it, memory is short."""
IDLE: Values = {"vllm:num_requests_running": 0}
PREEMPTED: Values = {"vllm:num_preemptions": 7}


def phases(*names: str) -> Values:
    return {f'growpage_decision_seconds{{phase="{name}"}}': (0.001, 5) for name in names}


@dataclass(frozen=True)
class Case:
    check: str
    status: Status
    detail: str
    """In the finding's detail."""
    remedy: str = ""
    """In its remedy."""
    before: Values = field(default_factory=dict)
    between: Values = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    settings: BudgetConfig | None = None


CASES = [
    Case("restarts", OK, "none"),
    Case("worker", OK, "0 compressions planned so far, 0 carried out"),
    Case(
        "worker",
        FAILURE,
        "5 compressions were planned (5 in the span), but the worker carried out 0",
        "--worker-cls",
        between={COMPRESSIONS: 5},
    ),
    Case(
        "worker",
        FAILURE,
        "105 compressions were planned (5 in the span), but the worker carried out 100 (0 in",
        "--worker-cls",
        before={COMPRESSIONS: 100, "growpage_compactions_confirmed": 100},
        between={COMPRESSIONS: 5},
    ),
    Case(
        "worker",
        OK,
        "5 compressions planned, 4 carried out",
        between={COMPRESSIONS: 5, "growpage_compactions_confirmed": 4},
    ),
    Case(
        "worker",
        OK,
        "0 compressions planned so far",
        between={'growpage_compressions{reason="boundary",mode="observe"}': 50},
    ),
    Case("compression under pressure", OK, "no pressure"),
    Case(
        "compression under pressure",
        OK,
        "3 compressions while memory was short",
        before=SHORT,
        between={**PREEMPTED, COMPRESSIONS: 3},
    ),
    Case(
        "compression under pressure",
        WARNING,
        "it would have compressed 40 times",
        "enforce",
        before=SHORT,
        between={**PREEMPTED, 'growpage_compressions{reason="pool",mode="observe"}': 40},
        made={"mode": {**MODE, "mode": "observe"}},
    ),
    Case(
        "compression under pressure",
        WARNING,
        "the policy full never compresses",
        "--growpage-policy elastic",
        before={**SHORT, WAITING: 3},
        made={"mode": {**MODE, "policy": "full"}},
    ),
    Case(
        "compression under pressure",
        FAILURE,
        "the scheduler class is not growpage's",
        "--scheduler-cls",
        before=SHORT,
        between=PREEMPTED,
    ),
    Case(
        "compression under pressure",
        FAILURE,
        "no queries are captured",
        "--attention-backend",
        before=SHORT,
        between={**PREEMPTED, **phases("decide")},
    ),
    Case(
        "compression under pressure",
        WARNING,
        "no request's attention was measured",
        "--growpage-warmup",
        before=SHORT,
        between={**PREEMPTED, **phases("decide", "capture")},
    ),
    Case(
        "compression under pressure",
        WARNING,
        "no request has a page to give above its floor",
        "--growpage-protect-prompt false",
        before=SHORT,
        between={**PREEMPTED, **phases("decide", "capture", "measure")},
        made={"mode": {**MODE, "policy": "elastic"}},
    ),
    Case(
        "compression under pressure",
        WARNING,
        "the roll-out enforces for others only",
        "add to only",
        before=SHORT,
        between={**PREEMPTED, 'growpage_compressions{reason="pool",mode="observe"}': 40},
    ),
    Case(
        "compression under pressure",
        WARNING,
        "every boundary grows",
        "--growpage-max-pages",
        before=SHORT,
        between={**PREEMPTED, **phases("decide", "capture")},
        made={"mode": {**MODE, "policy": "every"}},
    ),
    Case(
        "compression under pressure",
        WARNING,
        "every boundary grows",
        "--growpage-max-pages",
        before=SHORT,
        between={**PREEMPTED, **phases("decide", "capture", "measure")},
    ),
    Case("orphaned pages", OK, "none"),
    Case(
        "orphaned pages",
        FAILURE,
        "3 pages are neither free nor held",
        "restart the server",
        before={"growpage_orphaned_pages": 3},
    ),
    Case(
        "orphaned pages",
        WARNING,
        "earlier there were none",
        "longer span",
        between={"growpage_orphaned_pages": 3},
    ),
    Case("preemptions", OK, "none", before=SHORT),
    Case(
        "preemptions",
        WARNING,
        "7; at most 98% of the pool was seen in use, despite 3 compressions",
        "--growpage-min-pages",
        before=SHORT,
        between={**PREEMPTED, COMPRESSIONS: 3},
    ),
    Case(
        "preemptions",
        WARNING,
        "and nothing was compressed",
        "compression under pressure",
        before=SHORT,
        between=PREEMPTED,
    ),
    Case(
        "preemptions",
        WARNING,
        "at most 50% of the pool was seen in use, with no orphaned pages and a fragmentation of",
        "--max-num-seqs",
        between=PREEMPTED,
    ),
    Case(
        "preemptions",
        FAILURE,
        "at most 50% of the pool was seen in use: 40 pages are neither free nor held",
        "restart the server",
        before={"growpage_orphaned_pages": 40},
        between=PREEMPTED,
    ),
    Case("recompute share", OK, "0 of 500 tokens (0.0%)"),
    Case(
        "recompute share",
        WARNING,
        "125 of 625 tokens (20.0%) were computed again",
        "--enable-prefix-caching",
        between={"growpage_recomputed_tokens": 125},
    ),
    Case(
        "recompute share",
        UNKNOWN,
        "nothing was computed",
        between={"vllm:prompt_tokens": 0, "vllm:generation_tokens": 0},
    ),
    Case("queue", OK, "0.0 requests waited"),
    Case(
        "queue",
        WARNING,
        "4.0 requests waited with 98% of the pool in use, on average: the pool is full",
        "--kv-cache-memory-bytes",
        before={**SHORT, WAITING: 4},
    ),
    Case(
        "queue",
        WARNING,
        "2.0 requests waited with 86% of the pool in use, on average: the pool is full",
        "more replicas",
        before={"vllm:kv_cache_usage_perc": 0.75},
        between={"vllm:kv_cache_usage_perc": 0.97, WAITING: 4},
    ),
    Case(
        "queue",
        WARNING,
        "4.0 requests waited with 18% of the pool in use, on average: 8.0 run and --max-num-seqs "
        "is 8, which is the limit",
        "a larger --max-num-seqs than 8",
        before={
            "vllm:kv_cache_usage_perc": 0.18,
            "vllm:num_requests_running": 8,
            WAITING: 4,
        },
    ),
    Case(
        "queue",
        WARNING,
        "40 pages are neither free nor held",
        "orphaned pages",
        before={WAITING: 4, "growpage_orphaned_pages": 40},
    ),
    Case(
        "queue",
        WARNING,
        "4.0 of 8 run, so neither used memory nor --max-num-seqs is the limit",
        "--growpage-min-pages",
        before={WAITING: 4},
    ),
    Case("refused growth", OK, "none; 20 steps granted"),
    Case(
        "refused growth",
        OK,
        "2 of 22 steps (9%) refused",
        between={'growpage_growth_refused{reason="pool",mode="enforce"}': 2},
    ),
    Case(
        "refused growth",
        WARNING,
        "20 of 40 steps (50%) refused, by reason: max_pages 15, pool 5; mostly requests were at",
        "a larger --growpage-max-pages",
        between={
            'growpage_growth_refused{reason="pool",mode="enforce"}': 5,
            'growpage_growth_refused{reason="max_pages",mode="enforce"}': 15,
        },
    ),
    Case(
        "refused growth",
        WARNING,
        "tenants were at their quota",
        "quota for the tenant",
        between={'growpage_growth_refused{reason="quota",mode="enforce"}': 15},
    ),
    Case(
        "refused growth",
        WARNING,
        "requests grew faster than allowed",
        "max_growth_rate",
        between={'growpage_growth_refused{reason="growth_rate",mode="enforce"}': 15},
    ),
    Case(
        "refused growth",
        WARNING,
        "the pool had no free page",
        "more KV memory",
        between={'growpage_growth_refused{reason="pool",mode="enforce"}': 15},
    ),
    Case("refused prompts", OK, "none"),
    Case(
        "refused prompts",
        WARNING,
        "2 prompts were longer than the whole pool (2880 tokens)",
        "--max-model-len",
        between={"growpage_refused_prompts": 2},
    ),
    Case("predicted loss", OK, "no compression"),
    Case(
        "predicted loss",
        OK,
        "95% of 50 compressions lose at most",
        between={'growpage_predicted_loss{mode="enforce"}': (0.02, 50)},
    ),
    Case(
        "predicted loss",
        WARNING,
        "25.0% on average; more than 10% puts answers at risk",
        "--growpage-min-pages",
        between={'growpage_predicted_loss{mode="enforce"}': (0.25, 50)},
    ),
    Case(
        "predicted loss",
        WARNING,
        "since the start",
        "smaller model",
        before={'growpage_predicted_loss{mode="enforce"}': (0.25, 50)},
    ),
    Case("page utilization", OK, "80% of the slots filled"),
    Case(
        "page utilization",
        UNKNOWN,
        "no request was running",
        before={"vllm:num_requests_running": 0},
    ),
    Case(
        "page utilization",
        WARNING,
        "50% of the slots filled, on average; a request keeps 20 tokens in pages of 32: the pages "
        "are large",
        "a smaller --block-size than 32",
        before={"growpage_kv_page_utilization": 0.5, "growpage_kv_kept_tokens": 80},
    ),
    Case(
        "page utilization",
        WARNING,
        "a request keeps 200 tokens in pages of 32: half-empty last pages explain only 7%",
        "--growpage-min-pages",
        before={"growpage_kv_page_utilization": 0.5},
    ),
    Case("allocation latency", OK, "99% of 20 within"),
    Case(
        "allocation latency",
        WARNING,
        "more than 15 ms (on average: compact 40.0 ms)",
        "a larger --block-size",
        between={
            "growpage_page_allocation_latency_seconds": (0.04, 30),
            'growpage_decision_seconds{phase="compact"}': (0.04, 30),
        },
    ),
    Case(
        "allocation latency",
        UNKNOWN,
        "no page has been allocated yet",
        between={"growpage_page_allocation_latency_seconds": (0.0, 0)},
    ),
    Case("fragmentation", OK, "30% of neighbouring pages"),
    Case(
        "fragmentation",
        WARNING,
        "95% of neighbouring pages lie apart",
        "--block-size",
        before={"growpage_page_table_fragmentation": 0.95},
    ),
    Case(
        "fragmentation", UNKNOWN, "no request was running", before={"vllm:num_requests_running": 0}
    ),
    Case("use of the budget", OK, "0 compressions, since the start"),
    Case(
        "use of the budget",
        WARNING,
        "0 compressions over 50 requests, since the start: they would hold 100 tokens on average",
        "a --growpage-min-pages below",
        between={"growpage_kv_demand_tokens": (100, 50)},
    ),
    Case(
        "use of the budget",
        WARNING,
        "none came to its budget",
        "a --growpage-budget below",
        between={"growpage_kv_demand_tokens": (100, 50)},
        made={"mode": {**MODE, "policy": "fixed"}},
    ),
    Case(
        "use of the budget",
        OK,
        "there was memory for all of them",
        between={"growpage_kv_demand_tokens": (100, 50)},
        made={"mode": {**MODE, "policy": "elastic"}},
    ),
    Case(
        "use of the budget",
        OK,
        "9 compressions over 50 requests",
        between={"growpage_kv_demand_tokens": (100, 50), COMPRESSIONS: 9},
    ),
    Case("prefix caching", OK, "on; nothing was looked up"),
    Case(
        "prefix caching",
        OK,
        "on; 25% of 200 looked-up tokens",
        between={"vllm:prefix_cache_queries": 200, "vllm:prefix_cache_hits": 50},
    ),
    Case(
        "prefix caching",
        WARNING,
        "off, with 900 prompt tokens for 400 generated",
        "--enable-prefix-caching",
        between={"vllm:prompt_tokens": 900},
        made={"cache": {**CACHE, "enable_prefix_caching": "False"}},
    ),
    Case(
        "prefix caching",
        OK,
        "off, with 100 prompt tokens",
        made={"cache": {**CACHE, "enable_prefix_caching": "False"}},
    ),
    Case("8-bit cache", OK, "not in use"),
    Case(
        "8-bit cache",
        UNKNOWN,
        "centre_keys among them",
        "--config",
        made={"mode": {**MODE, "cache": "fp8"}},
    ),
    Case(
        "8-bit cache",
        WARNING,
        "centre_keys is false",
        "--growpage-centre-keys true",
        made={"mode": {**MODE, "cache": "fp8_e4m3"}},
        settings=BudgetConfig(policy="growpage", centre_keys=False),
    ),
    Case(
        "8-bit cache",
        OK,
        "with centred keys",
        made={"mode": {**MODE, "cache": "fp8"}},
        settings=BudgetConfig(policy="growpage"),
    ),
    Case("settings and pool", UNKNOWN, "does not export its settings", "--config"),
    Case(
        "settings and pool",
        OK,
        "fit a pool of 90 pages of 32",
        settings=BudgetConfig(policy="growpage", min_pages=4),
    ),
    Case(
        "settings and pool",
        WARNING,
        "the policy is fixed in the file and growpage in the engine",
        "that this server was started with",
        settings=BudgetConfig(policy="fixed"),
    ),
    Case(
        "settings and pool",
        FAILURE,
        "step is 48, but must be a multiple of the block size, 32",
        "the setting that it names",
        settings=BudgetConfig(policy="growpage", step=48),
    ),
    Case(
        "settings and pool",
        WARNING,
        "min_pages asks for 16 pages a request, 128 for --max-num-seqs 8, and the pool has 90: at "
        "most 5 fit at once",
        "--max-num-seqs 5",
        settings=BudgetConfig(policy="growpage", min_pages=16),
    ),
    Case(
        "settings and pool",
        WARNING,
        "budget asks for 16 pages a request",
        "--growpage-budget",
        made={"mode": {**MODE, "policy": "fixed"}},
        settings=BudgetConfig(policy="fixed", budget=512),
    ),
    Case(
        "settings and pool",
        WARNING,
        "watermark is 90 pages, and the whole pool has 90",
        "a --growpage-watermark well below 90",
        made={"mode": {**MODE, "policy": "elastic"}},
        settings=BudgetConfig(policy="elastic", watermark=90),
    ),
    Case(
        "settings and pool",
        WARNING,
        "admit_pages is 46, and the whole pool has 90 pages, so that requests run one at a time",
        "a --growpage-admit-pages of at most 45",
        made={"mode": {**MODE, "policy": "elastic"}},
        settings=BudgetConfig(policy="elastic", admit_pages=46),
    ),
    Case(
        "settings and pool",
        WARNING,
        "watermark is set, but the policy growpage does not read it",
        "--growpage-policy elastic",
        settings=BudgetConfig(policy="growpage", watermark=3),
    ),
    Case(
        "settings and pool",
        WARNING,
        "max_pages is 100, more than the pool's 90",
        "--growpage-max-pages below 90",
        settings=BudgetConfig(policy="growpage", max_pages=100),
    ),
]


def named(findings: list[Finding], name: str) -> Finding:
    (finding,) = (finding for finding in findings if finding.name == name)
    return finding


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}-{case.detail[:30]}")
def test_a_check_of_one_engine(case: Case) -> None:
    engines = two_samples(case.before, case.between, **case.made)
    finding = named(diagnose(evidence_of(*engines), case.settings), case.check)
    assert finding.status is case.status, finding
    assert case.detail in finding.detail
    assert case.remedy in finding.remedy
    assert bool(finding.remedy) >= (finding.status in (WARNING, FAILURE))


def test_every_check_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    fires = {case.check for case in CASES if case.status in (WARNING, FAILURE)}
    quiet = {case.check for case in CASES if case.status is OK}
    assert quiet == set(ENGINE_CHECKS)
    assert fires == set(ENGINE_CHECKS) - {"restarts"}  # a test of its own, below


def test_a_healthy_engine_is_found_healthy() -> None:
    findings = diagnose(evidence_of(*two_samples()), BudgetConfig(policy="growpage"))
    assert {finding.status for finding in findings} == {OK}
    assert [finding.name for finding in findings] == [*EVIDENCE_CHECKS, *ENGINE_CHECKS]


def test_the_worst_comes_first() -> None:
    engines = two_samples(SHORT, {**PREEMPTED, COMPRESSIONS: 5})
    severities = [finding.status.severity for finding in diagnose(evidence_of(*engines))]
    assert severities == sorted(severities)
    assert severities[0] == FAILURE.severity


NEEDED = {
    "restarts": "vllm:generation_tokens_total",
    "worker": "growpage_compactions_confirmed_total",
    "compression under pressure": "vllm:num_preemptions_total",
    "orphaned pages": "growpage_orphaned_pages",
    "preemptions": "vllm:num_preemptions_total",
    "recompute share": "growpage_recomputed_tokens_total",
    "queue": "vllm:num_requests_waiting_by_reason",
    "refused growth": "growpage_growths_total",
    "refused prompts": "growpage_refused_prompts_total",
    "predicted loss": "growpage_predicted_loss_bucket",
    "page utilization": "growpage_kv_page_utilization",
    "allocation latency": "growpage_page_allocation_latency_seconds_bucket",
    "fragmentation": "growpage_page_table_fragmentation",
    "use of the budget": "growpage_kv_demand_tokens_bucket",
    "prefix caching": "vllm:cache_config_info",
    "8-bit cache": "growpage_mode_info",
    "settings and pool": "growpage_max_num_seqs",
}


@pytest.mark.parametrize("check", ENGINE_CHECKS)
def test_a_check_is_unknown_without_its_metric(check: str) -> None:
    (engine,) = two_samples()
    metric = NEEDED[check]
    blind = replace(
        engine,
        series={name: series for name, series in engine.series.items() if name != metric},
        declared=engine.declared - {metric.removesuffix("_total").removesuffix("_bucket")},
    )
    finding = named(diagnose(evidence_of(blind), BudgetConfig(policy="growpage")), check)
    assert finding.status is UNKNOWN
    assert finding.detail == f"metric {metric} is not exported"


def test_a_plain_vllm() -> None:
    text = PLAIN.read_text()
    engines = from_exposition([Scrape(0, text), Scrape(10, text)])
    findings = diagnose(evidence_of(*engines))
    missing = named(findings, "growpage metrics")
    assert missing.status is FAILURE
    assert "none of growpage's: the plugin is not on" in missing.detail
    assert "growpage serve" in missing.remedy
    assert named(findings, "preemptions").status is OK
    worker = named(findings, "worker")
    assert worker.status is UNKNOWN
    assert worker.detail == "metric growpage_compressions_total is not exported"


def test_a_plugin_whose_metrics_are_not_loaded() -> None:
    evidence = evidence_of(*two_samples(growpage=False))
    assert evidence.server is not None
    page = replace(evidence, server=replace(evidence.server, routes=True))
    finding = named(diagnose(page), "growpage metrics")
    assert finding.status is FAILURE
    assert "there is no budget, or metrics are off" in finding.detail
    assert "--growpage-no-metrics" in finding.remedy


def test_an_engine_that_has_not_reported_yet() -> None:
    (engine,) = two_samples()
    series = {name: each for name, each in engine.series.items() if name != "growpage_mode_info"}
    findings = diagnose(evidence_of(replace(engine, series=series)))
    assert named(findings, "growpage metrics").status is OK
    for check in ("versions", "engines alike"):
        assert named(findings, check).status is UNKNOWN
        assert "an engine first reports when it has work" in named(findings, check).detail


def test_a_server_without_statistics() -> None:
    findings = diagnose(evidence_of())
    assert named(findings, "engines").status is FAILURE
    assert "--disable-log-stats" in named(findings, "engines").remedy
    assert {finding.name for finding in findings} == set(EVIDENCE_CHECKS)


@pytest.mark.parametrize(
    ("facts", "detail"),
    [
        (TargetFacts(1, down=("b:8000",)), "1 of 2 targets cannot be scraped: b:8000"),
        (TargetFacts(0, gone=("a engine 0",)), "no engine reports any more; a engine 0 did"),
    ],
)
def test_targets_that_are_down_or_gone(facts: TargetFacts, detail: str) -> None:
    finding = named(diagnose(Evidence("test", (), targets=facts)), "engines")
    assert finding.status is FAILURE
    assert detail in finding.detail


def test_engines_that_are_gone_while_others_report_are_only_said() -> None:
    facts = TargetFacts(1, gone=("old engine 0",))
    finding = named(diagnose(Evidence("test", two_samples(), targets=facts)), "engines")
    assert finding.status is OK
    assert "gone since: old engine 0" in finding.detail


@pytest.mark.parametrize(
    ("vllm", "status", "detail"),
    [
        ("0.32.0", OK, "vLLM 0.32.0; growpage "),
        ("0.33.1+cpu", OK, "vLLM 0.33.1+cpu"),
        ("0.9.2", FAILURE, "the server runs vLLM 0.9.2"),
        ("dev", FAILURE, "the server runs vLLM dev"),
        (None, OK, "vLLM's version is not exported"),
    ],
)
def test_vllm_versions(vllm: str | None, status: Status, detail: str) -> None:
    finding = named(diagnose(evidence_of(*two_samples(), vllm=vllm)), "versions")
    assert finding.status is status
    assert detail in finding.detail


def test_growpage_versions() -> None:
    old = two_samples(mode={**MODE, "version": "0.0.1"}, engine="1")
    finding = named(diagnose(evidence_of(*old)), "versions")
    assert finding.status is WARNING
    assert "the engines run growpage 0.0.1" in finding.detail
    finding = named(diagnose(evidence_of(*two_samples(), *old)), "versions")
    assert "0.0.1 on engine 1" in finding.detail


def test_engines_that_are_set_differently() -> None:
    other = two_samples(mode={**MODE, "mode": "observe"}, engine="1")
    finding = named(diagnose(evidence_of(*two_samples(), *other)), "engines alike")
    assert finding.status is WARNING
    assert "differ in mode: enforce on engine 0; observe on engine 1" in finding.detail


def test_the_worst_engine_is_named_and_how_many_are_like_it() -> None:
    leaks: Values = {"growpage_orphaned_pages": 3}
    engines = [
        *two_samples(),
        *two_samples(leaks, engine="1"),
        *two_samples(leaks, engine="2"),
    ]
    finding = named(diagnose(evidence_of(*engines)), "orphaned pages")
    assert finding.status is FAILURE
    assert finding.detail.startswith("engine 1: 3 pages")
    assert finding.detail.endswith("(2 of 3 engines: failure)")


def test_counters_that_go_back() -> None:
    (high,) = two_samples({"vllm:generation_tokens": 1000})
    series = high.series["vllm:generation_tokens_total"][0]
    back = replace(series, points={0.0: 1000.0, 10.0: 30.0})
    engine = replace(high, series={**high.series, "vllm:generation_tokens_total": (back,)})
    finding = named(diagnose(evidence_of(engine)), "restarts")
    assert finding.status is WARNING
    assert "a counter went back (times: 1)" in finding.detail
    assert back.increase == 30


def test_every_name_in_the_checks_exists_and_is_asked_of_prometheus() -> None:
    folder = Path(growpage.diagnosis.__path__[0])
    source = "".join(path.read_text() for path in folder.rglob("*.py"))
    ours = set(re.findall(r'"(growpage_\w+)"', source))
    assert ours <= exposed_names() | {metric.name for metric in METRICS}
    assert set(re.findall(r'"(vllm:\w+)"', source)) == {*VLLM_METRICS, CACHE_CONFIG}
    assert {*VLLM_METRICS, CACHE_CONFIG} <= set(re.findall(r"^([\w:]+)", PLAIN.read_text(), re.M))


def test_the_documentation_has_an_entry_for_each_check_and_for_nothing_else() -> None:
    text = (Path(__file__).parents[2] / "docs/troubleshooting.md").read_text()
    remote, local = text.split("## On a machine")
    entries = re.findall(r"^### (.+)$", remote, re.M)
    assert sorted(entries) == sorted([*EVIDENCE_CHECKS, *ENGINE_CHECKS])
    source = Path(growpage.diagnosis.__path__[0]).parent / "engine/diagnosis.py"
    named_there = set(re.findall(r'(?:Finding\(\s*|name = )"([a-z ]+)"', source.read_text()))
    assert set(re.findall(r"^### (.+)$", local, re.M)) == named_there

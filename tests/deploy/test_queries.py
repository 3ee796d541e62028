"""The queries that KEDA, the metrics adapter and the rules ask."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import promql_parser
import pytest
import yaml

from tests.deploy.manifests import Manifest, of_kind
from tests.deploy.queries import (
    adapter_rules,
    metric_names,
    of_adapter,
    of_rules,
    of_triggers,
    raw_counters,
    returns_one_series,
)
from tests.prometheus_server import PROGRAMS

OURS = {"growpage_desired_replicas"}
_SUFFIX = re.compile(r"_(total|bucket|sum|count)$")


@pytest.fixture(scope="module")
def triggers(rendered: dict[str, list[Manifest]]) -> set[str]:
    return {query for manifests in rendered.values() for query in of_triggers(manifests)}


@pytest.fixture(scope="module")
def queries(triggers: set[str]) -> list[str]:
    return [*triggers, *of_rules(), *of_adapter('namespace="growpage",target="growpage-server"')]


def vllm_source() -> str:
    """Where vLLM defines its metrics."""
    spec = importlib.util.find_spec("vllm")  # finds, and does not import
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "v1"
    return "".join(
        path.read_text(encoding="utf-8")
        for path in (folder / "metrics/loggers.py", folder / "spec_decode/metrics.py")
    )


def test_every_query_is_promql(queries: list[str]) -> None:
    assert len(queries) > 8
    for query in queries:
        promql_parser.parse(query)


def test_no_counter_is_read_as_it_is(triggers: set[str]) -> None:
    asked = [*triggers, *of_rules()]
    asked += [rule["metricsQuery"].replace("<<.LabelMatchers>>", "") for rule in adapter_rules()]
    for query in asked:
        assert raw_counters(query) == []


@pytest.mark.parametrize(
    "query",
    [
        "vllm:num_preemptions_total",
        "sum(vllm:num_preemptions_total) > 1",
        "histogram_quantile(0.9, sum by (le) (vllm:time_to_first_token_seconds_bucket))",
        "max_over_time(vllm:num_preemptions_total[5m])",
    ],
)
def test_a_raw_counter_is_found(query: str) -> None:
    assert len(raw_counters(query)) == 1


def test_what_scales_returns_one_series(triggers: set[str]) -> None:
    assert triggers
    for query in triggers:
        assert returns_one_series(query)
    assert not returns_one_series("max by (pod) (growpage_desired_replicas)")
    assert not returns_one_series("growpage_desired_replicas")


def test_two_autoscalers_give_one_answer_and_none_gives_none(
    triggers: set[str], tmp_path: Path
) -> None:
    (query,) = triggers
    labels = 'namespace="growpage",model_name="SmolLM2-135M-Instruct",target="growpage-server"'
    asked = {
        "interval": "15s",
        "input_series": [
            {"series": f'growpage_desired_replicas{{{labels},pod="a"}}', "values": "3x4 stale"},
            {"series": f'growpage_desired_replicas{{{labels},pod="b"}}', "values": "3x4 stale"},
            {
                "series": f"growpage_desired_replicas{{{labels.replace('growpage-', 'other-')}}}",
                "values": "9x20",
            },
        ],
        "promql_expr_test": [
            {"expr": query, "eval_time": "1m", "exp_samples": [{"labels": "{}", "value": 3}]},
            {"expr": query, "eval_time": "2m", "exp_samples": []},
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [asked]}), encoding="utf-8")
    promtool = PROGRAMS / "promtool"
    done = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_exists(triggers: set[str]) -> None:
    # The rules have tests of their own.
    source = vllm_source()
    for query in [*triggers, *of_adapter('namespace="growpage"')]:
        for metric in metric_names(query) - OURS:
            assert metric.startswith("vllm:")
            assert f'"{_SUFFIX.sub("", metric)}"' in source, f"vLLM has no metric {metric}"


def test_the_adapter_offers_what_the_hpas_ask_for(rendered: dict[str, list[Manifest]]) -> None:
    offered = {rule["name"]["as"] for rule in adapter_rules()}
    asked = {
        metric["external"]["metric"]["name"]
        for manifests in rendered.values()
        for hpa in of_kind(manifests, "HorizontalPodAutoscaler")
        for metric in hpa["spec"]["metrics"]
    }
    assert asked == offered

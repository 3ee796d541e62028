"""Every query of the dashboard, the rules and the documentation asks for what really exists.

Dashboards that query dead names show empty panels, and alerts that do never fire.
"""

from __future__ import annotations

import re

import pytest

from growpage.telemetry.catalogue import METRICS
from tests.monitoring.queries import (
    ROOT,
    Query,
    autoscaler_labels,
    dashboard_queries,
    documented_queries,
    growpage_labels,
    known_labels,
    parse,
    problems,
    queries,
    rule_queries,
    vllm_labels,
)


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.place)
def test_every_metric_and_label_of_a_query_exists(query: Query) -> None:
    assert problems(query.text) == []


def test_queries_were_found_everywhere() -> None:
    assert len(list(rule_queries())) >= 20
    assert len(list(dashboard_queries())) >= 40
    assert len(list(documented_queries())) >= 3


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("vllm:gpu_cache_usage_perc", "there is no metric vllm:gpu_cache_usage_perc"),
        ("rate(vllm:num_preemptions[5m])", "there is no metric vllm:num_preemptions"),
        ("growpage_compressions", "there is no metric growpage_compressions"),
        ('growpage_growths_total{cause="cold"}', "growpage_growths_total has no label cause"),
        ("growpage_kv_kept_tokens > 5 and growpage_none", "there is no metric growpage_none"),
        (
            "increase(growpage_autoscaler_scale_errors[5m])",
            "there is no metric growpage_autoscaler_scale_errors",
        ),
        (
            "growpage_desired_replicas{engine='0'}",
            "growpage_desired_replicas has no label engine",
        ),
        (
            "sum by (reason) (growpage_kv_kept_tokens)",
            "nothing in growpage_kv_kept_tokens has the label reason",
        ),
        (
            "up and on (model_name) growpage_kv_kept_tokens",
            "nothing in up has the label model_name",
        ),
        (
            "sum by (engine) (sum by (model_name) (growpage_kv_kept_tokens))",
            "nothing in sum by (model_name) (growpage_kv_kept_tokens) has the label engine",
        ),
        (
            "sum by (le) (histogram_quantile(0.9, growpage_predicted_loss_bucket))",
            "nothing in histogram_quantile(0.9, growpage_predicted_loss_bucket) has the label le",
        ),
    ],
)
def test_a_name_that_does_not_exist_is_found(query: str, problem: str) -> None:
    assert problems(query) == [problem]


def test_what_is_no_promql_is_refused() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        parse("sum(rate(growpage_growths_total[5m])")


def test_the_list_of_vllm_metrics_is_vllm_s_own() -> None:
    labels = vllm_labels()
    assert labels["vllm:num_requests_waiting_by_reason"] == {"engine", "model_name", "reason"}
    assert "model_name" not in labels["vllm:cache_config_info"]
    assert not any(name.startswith("growpage_") for name in labels)


def test_the_autoscaler_s_metrics_are_those_of_its_code() -> None:
    labels = autoscaler_labels()
    target = {"namespace", "model_name", "target"}
    assert labels["growpage_autoscaler_data_state"] == {*target, "state"}
    assert labels["growpage_autoscaler_scale_errors_total"] == target
    assert labels["growpage_autoscaler_query_errors_total"] == set()
    assert labels["growpage_autoscaler_round_duration_seconds_bucket"] == {"le"}
    assert not labels.keys() & growpage_labels().keys()


def test_every_metric_of_the_catalogue_is_on_the_dashboard() -> None:
    asked = " ".join(query.text for query in dashboard_queries())
    missing = [
        metric.name for metric in METRICS if not any(name in asked for name in metric.exposed)
    ]
    assert missing == []


def test_no_page_names_a_metric_that_does_not_exist() -> None:
    """In running text, where no parser looks: names in backticks."""
    known = known_labels()
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}
    wrong = [
        f"{page.name}: {name}"
        for page in (ROOT / "docs" / "monitoring.md", *(ROOT / "docs" / "runbooks").glob("*.md"))
        for name in re.findall(r"`((?:growpage_|vllm:)\w+)[`{\[]", page.read_text("utf-8"))
        if name not in known and name not in families
    ]
    assert wrong == []

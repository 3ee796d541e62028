"""Every PromQL query of the project, and whether the metrics and labels that it names exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from growpage.fleet.controller import Round
from growpage.fleet.decision import DataState
from growpage.fleet.telemetry import FleetMetrics
from growpage.telemetry.catalogue import ENGINE_LABELS, METRICS
from tests.monitoring.autoscaler import record

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "growpage.json"
VLLM_METRICS = ROOT / "tests" / "data" / "vllm-0.32-metrics.txt"

TARGET_LABELS = frozenset({"job", "instance", "namespace", "pod"})
"""What a scrape adds to every series; the last two on Kubernetes."""

PROMETHEUS_OWN = {
    "up": frozenset(),
    "ALERTS": frozenset({"alertname", "alertstate", "severity"}),
}
"""Series that Prometheus makes itself, and their labels besides those of targets."""

Labels = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Query:
    """One query, and where it stands."""

    place: str
    text: str


# ---- what there is ---------------------------------------------------------------------------


def vllm_labels() -> dict[str, frozenset[str]]:
    """Labels of each of vLLM's series."""
    lines = VLLM_METRICS.read_text(encoding="utf-8").splitlines()
    rows = (line.split(" ") for line in lines if not line.startswith("#"))
    return {name: frozenset(labels.split(",")) - {"-"} for name, _, labels in rows}


def growpage_labels() -> dict[str, frozenset[str]]:
    """Labels of each of growpage's series."""
    return {
        name: frozenset((*ENGINE_LABELS, *metric.labels))
        | ({"le"} if name.endswith("_bucket") else set())
        for metric in METRICS
        for name in metric.exposed
    }


def autoscaler_labels() -> dict[str, frozenset[str]]:
    """Labels of each of the autoscaler's series, as it exports them after a round."""
    metrics = FleetMetrics()
    decided = record("m", DataState.FRESH)
    metrics.record(decided)
    metrics.record_round(Round((decided,)), seconds=0.1)
    found = {}
    for family in metrics.registry.collect():
        assert family.samples, f"{family.name}: this round does not show it"
        found.update({sample.name: frozenset(sample.labels) for sample in family.samples})
    return found


def load_rules() -> list[dict[str, Any]]:
    """All recording and alerting rules, in order."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@cache
def known_labels() -> Labels:
    """Labels of every series that a query may name, those of targets included."""
    known = {**vllm_labels(), **growpage_labels(), **autoscaler_labels(), **PROMETHEUS_OWN}
    known = {name: labels | TARGET_LABELS for name, labels in known.items()}
    for rule in load_rules():
        if "record" in rule:  # after those that it is made of
            known[rule["record"]] = result_labels(parse(rule["expr"]), known)
    return known


# ---- what is asked ---------------------------------------------------------------------------


def rule_queries() -> Iterator[Query]:
    for rule in load_rules():
        yield Query(f"{RULES.name}: {rule.get('record') or rule['alert']}", rule["expr"])


def dashboard_queries() -> Iterator[Query]:
    content = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in content["panels"]:
        for target in panel.get("targets", ()):
            yield Query(f"{DASHBOARD.name}: {panel['title']}", target["expr"])
    for variable in content["templating"]["list"]:
        if variable["type"] == "query":
            place = f"{DASHBOARD.name}: ${variable['name']}"
            call = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
            assert call, f"{place}: {variable['query']}"
            # So that the label is checked as any other.
            yield Query(place, f"group by ({call[2]}) ({call[1]})")


def documented_queries() -> Iterator[Query]:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        blocks = re.findall(r"^ *```promql\n(.*?)^ *```", page.read_text("utf-8"), re.M | re.S)
        for text in (part for block in blocks for part in block.split("\n\n")):
            yield Query(str(page.relative_to(ROOT)), text)


def queries() -> list[Query]:
    """All queries of rules, dashboard and documentation."""
    return [*rule_queries(), *dashboard_queries(), *documented_queries()]


# ---- judging ---------------------------------------------------------------------------------


def parse(text: str) -> Any:
    """The syntax tree of a query; Grafana's variables of time stand for five minutes.

    Raises:
        ValueError: it is no PromQL.
    """
    return promql_parser.parse(re.sub(r"\$__(rate_interval|interval|range)", "5m", text))


def problems(text: str, known: Labels | None = None) -> list[str]:
    """Names of metrics and labels in a query that do not exist; none for a good one."""
    known = known_labels() if known is None else known
    found: list[str] = []

    def check(node: Any) -> None:
        match node:
            case promql_parser.VectorSelector():
                labels = known.get(node.name)
                if labels is None:
                    found.append(f"there is no metric {node.name}")
                else:
                    asked = (matcher.name for matcher in node.matchers.matchers)
                    found.extend(
                        f"{node.name} has no label {name}" for name in asked if name not in labels
                    )
            case promql_parser.AggregateExpr() if node.modifier:
                has = result_labels(node.expr, known)
                found.extend(
                    f"nothing in {node.expr.prettify()} has the label {name}"
                    for name in node.modifier.labels
                    if name not in has
                )
            case promql_parser.BinaryExpr() if node.modifier and node.modifier.matching:
                for side in (node.lhs, node.rhs):
                    has = result_labels(side, known)
                    found.extend(
                        f"nothing in {side.prettify()} has the label {name}"
                        for name in node.modifier.matching.labels
                        if name not in has
                    )

    promql_parser.walk(parse(text), check)
    return found


def result_labels(node: Any, known: Labels) -> frozenset[str]:
    """Labels that a series in the result of an expression may have."""
    match node:
        case promql_parser.VectorSelector():
            labels = known.get(node.name, frozenset())
        case promql_parser.MatrixSelector():
            labels = result_labels(node.vector_selector, known)
        case promql_parser.AggregateExpr():
            named = frozenset(node.modifier.labels if node.modifier else ())
            inner = result_labels(node.expr, known)
            without = node.modifier and node.modifier.type == promql_parser.AggModifierType.Without
            labels = inner - named if without else inner & named
        case promql_parser.Call():
            labels = frozenset().union(*(result_labels(each, known) for each in node.args))
            if node.func.name == "histogram_quantile":
                labels -= {"le"}
        case promql_parser.BinaryExpr():
            left, right = result_labels(node.lhs, known), result_labels(node.rhs, known)
            labels = left | right if str(node.op) == "or" else left or right
        case promql_parser.ParenExpr() | promql_parser.SubqueryExpr() | promql_parser.UnaryExpr():
            labels = result_labels(node.expr, known)
        case _:
            labels = frozenset()
    return labels

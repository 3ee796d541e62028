"""Every PromQL query that is deployed, and what must not be in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import promql_parser
import yaml

from tests.deploy.manifests import Manifest, of_kind
from tools.render_manifests import ROOT, RULES

ADAPTER = ROOT / "deploy/prometheus-adapter/values.yaml"

_OVER_TIME = frozenset({"rate", "irate", "increase"})
_COUNTERS = ("_total", "_bucket", "_sum", "_count")


def of_triggers(manifests: Sequence[Manifest]) -> Iterator[str]:
    for scaled in of_kind(manifests, "ScaledObject"):
        for trigger in scaled["spec"]["triggers"]:
            if trigger["type"] == "prometheus":
                yield trigger["metadata"]["query"]


def of_rules() -> Iterator[str]:
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def of_adapter(labels: str) -> Iterator[str]:
    """The adapter's queries, with ``labels`` where it puts the HPA's."""
    for rule in adapter_rules():
        yield rule["seriesQuery"]
        yield rule["metricsQuery"].replace("<<.LabelMatchers>>", labels)


def adapter_rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load(ADAPTER.read_text(encoding="utf-8"))["rules"][
        "external"
    ]
    return rules


def raw_counters(query: str) -> list[str]:
    """Counters that are read as they are, and not over time."""
    return list(_raw_counters(promql_parser.parse(query)))


def metric_names(query: str) -> set[str]:
    names: set[str] = set()

    def note(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            names.add(node.name)

    promql_parser.walk(promql_parser.parse(query), note)
    return names


def returns_one_series(query: str) -> bool:
    """Whether the outermost part is an aggregation that keeps no label."""
    parsed = promql_parser.parse(query)
    return isinstance(parsed, promql_parser.AggregateExpr) and parsed.modifier is None


def _raw_counters(node: Any) -> Iterator[str]:
    if isinstance(node, promql_parser.Call) and node.func.name in _OVER_TIME:
        return
    if isinstance(node, promql_parser.VectorSelector) and node.name.endswith(_COUNTERS):
        yield node.name
    for attribute in ("expr", "lhs", "rhs", "param", "vector_selector"):
        if part := getattr(node, attribute, None):
            yield from _raw_counters(part)
    for part in getattr(node, "args", ()):
        yield from _raw_counters(part)

"""The user's guide says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from prometheus_client import generate_latest

from growpage.fleet.config import AutoscalerSettings, Policy
from growpage.fleet.metric_names import METRICS
from growpage.fleet.telemetry import FleetMetrics
from tests.monitoring.queries import RULES

GUIDE = (Path(__file__).parents[2] / "docs/autoscaler.md").read_text()


def after(mark: str) -> str:
    return GUIDE.split(f"<!-- {mark} -->\n")[1]


def test_the_configuration_is_accepted() -> None:
    block = re.match(r"```yaml\n(.*?)```", after("configuration"), re.DOTALL)
    assert block is not None
    settings = AutoscalerSettings.of(yaml.safe_load(block[1]))
    assert str(settings.models[0].target.target()) == "prod/Deployment/chat"


def test_every_alert_is_there_with_its_runbook() -> None:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    (rules,) = (group["rules"] for group in groups if group["name"] == "growpage-autoscaler")
    for rule in rules:
        page = rule["annotations"]["runbook_url"].rpartition("/")[2]
        assert f"[{rule['alert']}](runbooks/{page})" in GUIDE


def test_every_threshold_is_there_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", after("policy").split("\n\n")[0], re.M))
    said = {name: None if value == "-" else yaml.safe_load(value) for name, value in rows.items()}
    assert said == Policy().model_dump()


def test_every_metric_is_there() -> None:
    for names in METRICS.values():
        for name in names:
            assert name.removesuffix("_sum").removesuffix("_count") in GUIDE
    exported = generate_latest(FleetMetrics().registry).decode()
    for name in re.findall(r"^# TYPE (\S+) ", exported, re.M):
        assert name.endswith("_created") or name in GUIDE


def test_all_failures_are_there() -> None:
    table = GUIDE.split("## What went wrong elsewhere")[1]
    assert re.findall(r"^\| (\d+) \|", table, re.M) == [str(number) for number in range(1, 23)]
    tests = (Path(__file__).parent / "test_failures.py").read_text()
    covered = {int(number) for number in re.findall(r"def test_(\d\d)_", tests)}
    assert covered == set(range(1, 23)) - {17, 18}

"""The user's guide says what is so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import generate_latest

from growpage.fleet.config import AutoscalerSettings, Policy
from growpage.fleet.metric_names import METRICS
from growpage.fleet.telemetry import FleetMetrics
from tests.fleet.prometheus_server import BINARY

GUIDE = (Path(__file__).parents[2] / "docs/autoscaler.md").read_text()


def after(mark: str) -> str:
    return GUIDE.split(f"<!-- {mark} -->\n")[1]


def test_the_configuration_is_accepted() -> None:
    block = re.match(r"```yaml\n(.*?)```", after("configuration"), re.DOTALL)
    assert block is not None
    settings = AutoscalerSettings.of(yaml.safe_load(block[1]))
    assert str(settings.models[0].target.target()) == "prod/Deployment/chat"


def test_the_rules_tell_what_they_say(tmp_path: Path) -> None:
    """On what an autoscaler exports that holds, and of which one round failed to scale."""
    block = re.match(r"```yaml\n(.*?)```", after("rules"), re.DOTALL)
    assert block is not None
    (tmp_path / "rules.yaml").write_text(block[1])
    of_target = 'namespace="llm",model_name="m",target="chat"'
    labels = {"namespace": "llm", "model_name": "m", "target": "chat"}

    def at(time: str, alert: str, *expected: dict[str, str]) -> dict[str, Any]:
        return {
            "eval_time": time,
            "alertname": alert,
            "exp_alerts": [
                {"exp_labels": each, "exp_annotations": {"summary": _summary(block[1], alert)}}
                for each in expected
            ],
        }

    prefix = "growpage_autoscaler_"
    cases = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {
                        "series": f'{prefix}data_state{{{of_target},state="FRESH"}}',
                        "values": "1x10 0x20",
                    },
                    {
                        "series": f'{prefix}data_state{{{of_target},state="STALE"}}',
                        "values": "0x10 1x20",
                    },
                    {
                        "series": f"{prefix}round_duration_seconds_count",
                        "values": "0+4x20 80x20",
                    },
                    {
                        "series": f"{prefix}scale_errors_total{{{of_target}}}",
                        "values": "0x20 1x20",
                    },
                ],
                "alert_rule_test": [
                    at("15m", "GrowPageAutoscalerHolds"),
                    at("17m", "GrowPageAutoscalerHolds", {"severity": "warning", **labels}),
                    at("20m", "GrowPageAutoscalerSilent"),
                    at("32m", "GrowPageAutoscalerSilent", {"severity": "critical"}),
                    at("20m", "GrowPageAutoscalerCannotScale"),
                    at("22m", "GrowPageAutoscalerCannotScale", {"severity": "warning", **labels}),
                ],
            },
            {
                "interval": "1m",
                "input_series": [],
                "alert_rule_test": [
                    at("6m", "GrowPageAutoscalerSilent", {"severity": "critical"}),
                ],
            },
        ],
    }
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    done = subprocess.run(
        [BINARY.with_name("promtool"), "test", "rules", "cases.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _summary(rules: str, alert: str) -> str:
    for rule in yaml.safe_load(rules)["groups"][0]["rules"]:
        if rule["alert"] == alert:
            return str(rule["annotations"]["summary"]).replace("{{ $labels.target }}", "chat")
    raise AssertionError(alert)


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

from __future__ import annotations

from pathlib import Path

import pytest

from growpage.budget.errors import ConfigError
from growpage.budget.rollout import UNSTAGED, Origin, Rollout

MODELS = frozenset({"chat", "chat-v2"})


def stage(tmp_path: Path, text: str) -> Rollout:
    path = tmp_path / "rollout.yaml"
    path.write_text(text)
    return Rollout.from_file(path)


def test_without_a_file_everyone_is_enforced_without_limits() -> None:
    assert UNSTAGED.enforces(Origin(), MODELS, None)
    assert UNSTAGED.max_growth_rate is None
    assert not UNSTAGED.quotas


def test_a_file_limits_growth_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert stage(tmp_path, "mode: enforce").max_growth_rate == 0.3
    assert stage(tmp_path, "max_growth_rate: null").max_growth_rate is None


def test_observe_is_for_everyone(tmp_path: Path) -> None:
    found = stage(tmp_path, "mode: observe\nonly: {tenants: [a]}")
    assert not found.enforces(Origin("a"), MODELS, "prod")


@pytest.mark.parametrize(
    ("only", "origin", "namespace", "enforced"),
    [
        ("{tenants: [a, b]}", Origin("a"), None, True),
        ("{tenants: [a, b]}", Origin("c"), None, False),
        ("{tenants: [a, b]}", Origin(), None, False),
        ("{adapters: [sql]}", Origin(adapter="sql"), None, True),
        ("{adapters: [sql]}", Origin(tenant="sql"), None, False),
        ("{models: [chat-v2]}", Origin(), None, True),
        ("{models: [other]}", Origin(), None, False),
        ("{namespaces: [prod]}", Origin(), "prod", True),
        ("{namespaces: [prod]}", Origin(), None, False),
        ("{tenants: [a], namespaces: [prod]}", Origin("c"), "prod", True),
        ("{}", Origin("a", "sql"), "prod", False),
    ],
)
def test_enforced_for_those_named(
    tmp_path: Path, only: str, origin: Origin, namespace: str | None, enforced: bool
) -> None:
    found = stage(tmp_path, f"mode: enforce\nonly: {only}")
    assert found.enforces(origin, MODELS, namespace) is enforced


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("mode: audit", ("mode", "'audit'", "observe")),
        ("max_growth_rate: 0", ("max_growth_rate", "greater than 0")),
        ("quotas: {a: 0}", ("quotas.a", "greater than or equal to 1")),
        ("only: {tenant: [a]}", ("only.tenant", "not permitted")),
        ("quota: {a: 1}", ("quota ", "quotas")),
        ("- mode", ("mapping",)),
        ("", ("mapping",)),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        stage(tmp_path, text)
    for part in (str(tmp_path / "rollout.yaml"), *named):
        assert part in str(error.value)


def test_changes_name_old_and_new(tmp_path: Path) -> None:
    before = stage(tmp_path, "mode: observe\nchanged_by: alice")
    after = stage(tmp_path, "mode: enforce\nonly: {tenants: [a]}\nchanged_by: bob")
    assert after.changes(before)["mode"] == ("observe", "enforce")
    assert set(after.changes(before)) == {"mode", "only", "changed_by"}
    assert after.changes(after) == {}

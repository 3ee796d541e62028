"""Contenders are read as they are written, and what is wrong is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from growpage.bench.contenders import Contender, read_contenders
from growpage.budget.errors import ConfigError


def test_a_policy_alone_is_its_own_name() -> None:
    assert Contender.of("full") == Contender(name="full", settings={"policy": "full"})


def test_settings_become_what_the_budget_understands() -> None:
    found = Contender.of("fixed:budget=256,protect_prompt=false")
    assert found.settings == {"policy": "fixed", "budget": 256, "protect_prompt": False}
    assert found.name == "fixed:budget=256,protect_prompt=false"


def test_a_name_stands_before_it_and_the_engines_settings_are_apart() -> None:
    found = Contender.of("8-bit=elastic:giver=least_loss,kv_cache_dtype=fp8,pool=50%,concurrency=4")
    assert (found.name, found.kv_cache_dtype, found.pool, found.concurrency) == (
        "8-bit",
        "fp8",
        "50%",
        4,
    )
    assert found.settings == {"policy": "elastic", "giver": "least_loss"}


def test_plain_is_vllm_without_the_plugin() -> None:
    assert Contender.of("plain").settings is None
    with pytest.raises(ConfigError, match="no settings"):
        Contender.of("plain:budget=3")


@pytest.mark.parametrize(
    ("pool", "pages"), [(None, 7), ("12", 12), ("50%", 50), ("12.5%", 12), ("0.1%", 1)]
)
def test_a_pool_is_pages_or_a_share_of_the_need(pool: str | None, pages: int) -> None:
    assert Contender(name="x", settings=None, pool=pool).pool_pages(need=100, default=7) == pages


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "names no policy"),
        ("name=", "names no policy"),
        ("fixed:budget", "'budget' in 'fixed:budget' is no setting"),
        ("fixed:budgets=3", "budgets is not a setting"),
        ("fixed:budget=0", "budget is '0'"),
        ("nothing", "policy is 'nothing'"),
        ("elastic:pool=much", "pool as pages"),
        ("elastic:concurrency=0", "concurrency"),
    ],
)
def test_what_is_wrong_is_named(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        Contender.of(text)


def test_a_file_comes_after_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "contenders.yaml"
    file.write_text("- {policy: fixed, budget: 128}\n- {name: ours, policy: elastic, pool: 40%}\n")
    assert [each.name for each in read_contenders(["full"], file)] == ["full", "fixed", "ours"]


def test_a_contender_without_a_policy_is_not_the_default_one(tmp_path: Path) -> None:
    file = tmp_path / "contenders.yaml"
    file.write_text("- {name: plain}\n")
    with pytest.raises(ConfigError, match=r"'plain'.* names no policy"):
        read_contenders([], file)


@pytest.mark.parametrize("name", ["off", "No", "256", "2026-11-30", "~", "[a]"])
def test_a_name_that_yaml_takes_for_something_else_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "contenders.yaml"
    file.write_text(f"- {{name: {name}, policy: full}}\n")
    with pytest.raises(ConfigError, match="write it in quotes"):
        read_contenders([], file)
    file.write_text(f'- {{name: "{name}", policy: full}}\n')
    assert [each.name for each in read_contenders([], file)] == [name]


def test_names_are_told_apart_also_as_files() -> None:
    with pytest.raises(ConfigError, match="'a_b'"):
        read_contenders(["a b=full", "a_b=fixed"])


def test_nothing_to_compare_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to compare"):
        read_contenders([])
    (tmp_path / "x.yaml").write_text("policy: fixed\n")
    with pytest.raises(ConfigError, match="a list of contenders"):
        read_contenders([], tmp_path / "x.yaml")

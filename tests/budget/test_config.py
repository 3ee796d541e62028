"""Configurations: what is accepted, and one clear line for everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from growpage import BudgetConfig, ConfigError

SETTINGS = ", ".join(BudgetConfig.model_fields)
AT_LEAST_1 = "an integer, at least 1"
SCORES = "one of window, window_mass, output_error, diversity, summary, both, streaming, random"


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    """The message of the ConfigError that the call must raise: one line, not endless."""
    with pytest.raises(ConfigError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    return message


# ---- fields --------------------------------------------------------------------------------------


def test_defaults_are_valid_on_every_block_size() -> None:
    for block_size in (16, 32, 64, 128, 256):
        assert BudgetConfig().for_block_size(block_size).block_size == block_size


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("policy", "zipage", "one of full, fixed, growpage, every, elastic, entropy"),
        ("policy", None, "one of full, fixed, growpage, every, elastic, entropy"),
        ("policy", ["full"], "one of full, fixed, growpage, every, elastic, entropy"),
        ("score", "Window", SCORES),
        ("budget", 0, AT_LEAST_1),
        ("budget", -512, AT_LEAST_1),
        ("budget", 512.5, AT_LEAST_1),
        ("budget", float("nan"), AT_LEAST_1),
        ("budget", float("inf"), AT_LEAST_1),
        ("budget", True, AT_LEAST_1),
        ("budget", "lots", AT_LEAST_1),
        ("budget", "", AT_LEAST_1),
        ("budget", None, AT_LEAST_1),
        ("budget", [512], AT_LEAST_1),
        ("step", 0, "an integer or none, at least 1"),
        ("step", "", "an integer or none, at least 1"),
        ("budget", "none", AT_LEAST_1),
        ("min_pages", 1, "an integer, at least 2"),
        ("max_pages", 1, "an integer or none, at least 2"),
        ("sink", -1, "an integer, at least 0"),
        ("sink", True, "an integer, at least 0"),
        ("recent", 0, AT_LEAST_1),
        ("protect_prompt", 2, "true or false"),
        ("protect_prompt", "maybe", "true or false"),
        ("protect_prompt", None, "true or false"),
        ("local_quota", 1.0, "a number, at least 0 and less than 1"),
        ("local_quota", -0.1, "a number, at least 0 and less than 1"),
        ("local_quota", False, "a number, at least 0 and less than 1"),
        ("window", 65, "an integer, at least 1 and at most 64"),
        ("beta_short", 0.0, "a number, more than 0 and less than 1"),
        ("beta_long", 1.0, "a number, more than 0 and less than 1"),
        ("mass", 0, "a number, more than 0 and less than 1"),
        ("mass", 1, "a number, more than 0 and less than 1"),
        ("mass", float("nan"), "a number, more than 0 and less than 1"),
        ("mass", "90%", "a number, more than 0 and less than 1"),
        ("tau", float("nan"), "a finite number"),
        ("tau", float("-inf"), "a finite number"),
        ("tau", "inf", "a finite number"),
        ("tau", True, "a finite number"),
        ("tau_quantile", 1.0, "a number or none, more than 0 and less than 1"),
        ("giver", "smallest", "one of largest, least_evicted, least_loss, widest_margin"),
        ("young", -1, "an integer, at least 0"),
        ("floor", "none", "one of working_set, promised"),
        ("admit_pages", 1, "an integer or none, at least 2"),
        ("demand_over_heads", "max", "one of mean, q90 or none"),
        ("equal_norm", "some", "true or false"),
        ("warmup", 0, AT_LEAST_1),
        ("growth_rate", 1.01, "a number, at least 0 and at most 1"),
        ("track_entropy", 2, "true or false"),
        ("entropy_boundary", -0.1, "a number, at least 0"),
        ("entropy_dense", 1.1, "a number, at least 0 and at most 1"),
        ("entropy_wide", float("nan"), "a number, at least 0"),
        ("seed", -1, "an integer, at least 0"),
    ],
)
def test_a_wrong_value_is_named(field: str, value: Any, allowed: str) -> None:
    expected = f"{field} is {value!r}, but must be {allowed}"
    assert refusal(BudgetConfig.of, {field: value}) == expected


def test_every_field_can_be_refused_in_words() -> None:
    for field in BudgetConfig.model_fields:
        message = refusal(BudgetConfig.of, {field: {"no": "scalar"}})
        assert message.startswith(f"{field} is {{'no': 'scalar'}}, but must be ")


def test_long_values_are_cut() -> None:
    message = refusal(BudgetConfig.of, {"budget": "9" * 5000})
    assert message.startswith("budget is '999") and message.endswith(
        f"..., but must be {AT_LEAST_1}"
    )


@pytest.mark.parametrize(
    ("settings", "over_heads"),
    [
        ({}, "q90"),
        ({"policy": "growpage"}, "mean"),
        ({"policy": "every", "track_entropy": True}, "mean"),
        ({"policy": "growpage", "demand_over_heads": "q90"}, "q90"),
        ({"policy": "elastic", "demand_over_heads": "mean"}, "mean"),
        ({"policy": "elastic", "demand_over_heads": "none"}, "q90"),
    ],
)
def test_the_papers_rule_takes_the_mean_over_heads_unless_told_otherwise(
    settings: dict[str, Any], over_heads: str
) -> None:
    assert BudgetConfig.of(settings).over_heads == over_heads


@pytest.mark.parametrize("key", ["bogus", "Policy", "max-pages", "", 1, None, True])
def test_an_unknown_setting_is_named(key: Any) -> None:
    expected = f"{key} is not a setting; the settings are {SETTINGS}"
    assert refusal(BudgetConfig.of, {key: 1}) == expected


@pytest.mark.parametrize("settings", [None, "full", True, 3, [], ["policy"], [("budget", 1)]])
def test_settings_that_are_no_mapping(settings: Any) -> None:
    message = refusal(BudgetConfig.of, settings)
    assert message.startswith(f"the settings are {settings!r}, but must be a mapping")


def test_flags_may_be_text() -> None:
    given = {"budget": "640", "mass": "0.8", "protect_prompt": "false", "tau": "-1e-3"}
    config = BudgetConfig.of(given)
    assert (config.budget, config.mass, config.protect_prompt, config.tau) == (
        640,
        0.8,
        False,
        -1e-3,
    )
    assert BudgetConfig.of({"budget": 640.0}).budget == 640
    assert BudgetConfig.of({"max_pages": "none", "step": "none"}) == BudgetConfig()


def test_frozen_and_hashable() -> None:
    config = BudgetConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.budget = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.for_block_size(32).step_pages = 3  # type: ignore[misc]
    assert config == BudgetConfig() and hash(config) == hash(BudgetConfig())


def test_round_trip() -> None:
    config = BudgetConfig.of({"policy": "every", "step": 64, "tau": 2})
    assert BudgetConfig.of(config.model_dump()) == config
    assert BudgetConfig.of(json.loads(config.model_dump_json())) == config


# ---- files ---------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str | bytes, name: str = "budget.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


CONTENT = {"policy": "fixed", "budget": 640, "max_pages": 8, "step": None, "protect_prompt": False}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("b.yaml", yaml.safe_dump(CONTENT)),
        ("b", "# how much\n" + yaml.safe_dump(CONTENT)),
        ("b.json", json.dumps(CONTENT)),
        ("b.JSON", json.dumps(CONTENT, indent="\t")),
        ("b.yml", json.dumps(CONTENT, indent=2)),
        ("bom.yaml", "\ufeff" + yaml.safe_dump(CONTENT)),
        ("bom.json", "\ufeff" + json.dumps(CONTENT)),
    ],
)
def test_yaml_and_json(write: Any, name: str, text: str) -> None:
    assert BudgetConfig.from_file(write(text, name)) == BudgetConfig.of(CONTENT)
    assert BudgetConfig.from_file(str(write(text, name))) == BudgetConfig.of(CONTENT)


def test_overrides_win(write: Any) -> None:
    path = write("policy: fixed\nbudget: 640\n")
    config = BudgetConfig.from_file(path, budget=320, sink=8)
    assert (config.policy, config.budget, config.sink) == ("fixed", 320, 8)
    assert BudgetConfig.from_file(write("budget: -1\n"), budget=320).budget == 320


def test_the_file_is_blamed_for_its_own_settings_only(write: Any) -> None:
    path = write("budget: -1\n")
    assert (
        refusal(BudgetConfig.from_file, path) == f"{path}: budget is -1, but must be {AT_LEAST_1}"
    )
    path = write("budget: 64\n")
    assert refusal(BudgetConfig.from_file, path, sink=-1).startswith("sink is -1, but must be")


SUCH_AS = "a mapping of settings such as 'policy: fixed'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"{{path}} holds nothing, but must hold {SUCH_AS}"),
        ("# only a comment\n", f"{{path}} holds nothing, but must hold {SUCH_AS}"),
        ("- policy\n", f"{{path}} holds a list, but must hold {SUCH_AS}"),
        ("fixed\n", f"{{path}} holds a str, but must hold {SUCH_AS}"),
        ("7: 1\n", f"{{path}}: 7 is not a setting; the settings are {SETTINGS}"),
        ("on: 1\n", f"{{path}}: True is not a setting; the settings are {SETTINGS}"),
        ("bogus: 1\n", f"{{path}}: bogus is not a setting; the settings are {SETTINGS}"),
        ("sink: yes\n", "{path}: sink is True, but must be an integer, at least 0"),
        ("tau: .nan\n", "{path}: tau is nan, but must be a finite number"),
        ("budget: 1e3\n", f"{{path}}: budget is '1e3', but must be {AT_LEAST_1}"),
        (
            "budget: 64\nsink: 2\nbudget: 128\n",
            "{path}: budget is given 2 times, but must be given once",
        ),
        (
            "budget: [1\n",
            "{path} is not valid YAML: while parsing a flow sequence, "
            "expected ',' or ']', but got '<stream end>', line 2, column 1",
        ),
        (
            "budget: 64\n---\nbudget: 32\n",
            "{path} is not valid YAML: expected a single document in the stream, "
            "but found another document, line 2, column 1",
        ),
        ("tau: 2024-13-45\n", "{path} is not valid YAML: month must be in 1..12"),
    ],
)
def test_a_wrong_yaml_file(write: Any, text: str, message: str) -> None:
    path = write(text)
    assert refusal(BudgetConfig.from_file, path) == message.format(path=path)


@pytest.mark.parametrize(
    "text",
    [
        "{[1]: 2}\n",
        "budget: !!int many\n",
        "budget: !!timestamp now\n",
        "budget: !!python/name:os.system\n",
        "budget: \0\n",
        "\tbudget: 64\n",
        "budget: " + 2000 * "[",
        "budget: " + 5000 * "1",
    ],
)
def test_yaml_that_cannot_be_read(write: Any, text: str) -> None:
    path = write(text)
    assert refusal(BudgetConfig.from_file, path).startswith(f"{path} is not valid YAML: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "{path} is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        ("null", f"{{path}} holds nothing, but must hold {SUCH_AS}"),
        ("[1]", f"{{path}} holds a list, but must hold {SUCH_AS}"),
        ('{"tau": NaN}', "{path}: tau is nan, but must be a finite number"),
        ('{"sink": 1, "sink": 2}', "{path}: sink is given 2 times, but must be given once"),
        ("policy: full", "{path} is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_a_wrong_json_file(write: Any, text: str, message: str) -> None:
    path = write(text, "budget.json")
    assert refusal(BudgetConfig.from_file, path) == message.format(path=path)


def test_files_that_cannot_be_read(write: Any, tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (write("") / "below", "Not a directory"),
        (write(b"\xff\xfe\x00\x80", "binary.yaml"), "not a text file"),
    ):
        message = refusal(BudgetConfig.from_file, path)
        assert message == f"cannot read the configuration file {path}: {reason}"


# ---- block sizes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "block_size", "message"),
    [
        ({"step": 48}, 32, "step is 48, but must be a multiple of the block size, 32"),
        ({"step": 32}, 64, "step is 32, but must be a multiple of the block size, 64"),
        (
            {"policy": "fixed", "budget": 63},
            32,
            "budget is 63, but must be at least 64: "
            "room for 52 tokens (sink + recent + one step of 32), in whole pages",
        ),
        (
            {"policy": "fixed", "budget": 127, "step": 64},
            64,
            "budget is 127, but must be at least 128: "
            "room for 84 tokens (sink + recent + one step of 64), in whole pages",
        ),
        (
            {"min_pages": 2, "step": 64},
            32,
            "min_pages is 2, but must be at least 3 pages of 32: "
            "room for 84 tokens (sink + recent + one step of 64)",
        ),
        (
            {"max_pages": 2, "min_pages": 3},
            16,
            "max_pages is 2, but must be at least 3 pages of 16: "
            "room for 36 tokens (sink + recent + one step of 16)",
        ),
        ({"max_pages": 3}, 32, "max_pages is 3, but must be at least min_pages, 4"),
        (
            {"floor": "promised", "floor_loss": 0.1},
            32,
            "floor is 'promised', but must be working_set where floor_loss is set, 0.1",
        ),
        (
            {"floor": "promised", "prompt_floor": 0.5},
            32,
            "prompt_floor is 0.5, but must be 1 where the floor is what was promised",
        ),
        ({"admit_pages": 3}, 32, "admit_pages is 3, but must be at least min_pages, 4"),
        ({"local_quota": 0.97}, 32, "local_quota is 0.97, but must be at most 0.96875"),
        *(
            (
                {"recent": 8, "score": score},
                32,
                "recent is 8, but must be at least the window, 16",
            )
            for score in ("window", "window_mass", "output_error", "diversity", "both")
        ),
        (
            {"beta_short": 0.99, "beta_long": 0.9},
            32,
            "beta_short is 0.99, but must be less than beta_long, 0.9",
        ),
        ({"beta_long": 0.9}, 32, "beta_short is 0.9, but must be less than beta_long, 0.9"),
    ],
)
def test_what_does_not_fit_the_block_size(
    settings: dict[str, Any], block_size: int, message: str
) -> None:
    assert refusal(BudgetConfig.of(settings).for_block_size, block_size) == message


@pytest.mark.parametrize(
    ("settings", "block_size", "pages"),
    [
        ({}, 32, (16, 1, 8)),
        ({}, 128, (4, 1, 32)),
        ({"step": 64, "budget": 700}, 32, (21, 2, 8)),
        ({"policy": "fixed", "budget": 64}, 32, (2, 1, 8)),
        ({"budget": 3}, 32, (0, 1, 8)),  # only the policy `fixed` has a budget
        ({"local_quota": 0}, 32, (16, 1, 0)),
        ({"local_quota": 0.96875}, 32, (16, 1, 31)),
        ({"recent": 8, "score": "random"}, 32, (16, 1, 8)),
        ({"max_pages": 4}, 32, (16, 1, 8)),
    ],
)
def test_sizes_in_pages(
    settings: dict[str, Any], block_size: int, pages: tuple[int, int, int]
) -> None:
    found = BudgetConfig.of(settings).for_block_size(block_size)
    assert (found.budget_pages, found.step_pages, found.local_quota) == pages

"""Bad input is one clear line on standard error, and nothing is started."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

MODEL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}
SLIDING_WINDOW = {
    **MODEL,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "head_dim": 64,
    "sliding_window": 64,
}
MLA = {
    **MODEL,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_key_value_heads": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "moe_intermediate_size": 64,
    "n_routed_experts": 2,
    "n_shared_experts": 1,
    "num_experts_per_tok": 1,
    "first_k_dense_replace": 1,
}


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "growpage", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def only_line(result: subprocess.CompletedProcess[str]) -> str:
    """The message; fails unless the command failed with just that."""
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("growpage: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--growpage-policy", "fixd"], "policy is 'fixd', but must be one of full, fixed"),
        (["--growpage-budget", "-5"], "budget is '-5', but must be an integer, at least 1"),
        (["--growpage-sink=-1"], "sink is '-1', but must be an integer, at least 0"),
        (["--growpage-mass", "1.5"], "mass is '1.5', but must be a number, more than 0 and less"),
        (["--growpage-max-pages", "two"], "max_pages is 'two', but must be an integer or none"),
        (["--growpage-polcy", "full"], "--growpage-polcy is not a flag; the flags are"),
        (["--growpage-budget"], "argument --growpage-budget: expected one argument"),
        (
            ["--growpage-step", "48", "--block-size", "32"],
            "step is 48, but must be a multiple of the block size, 32",
        ),
        (
            ["--growpage-policy", "fixed", "--growpage-budget", "50", "--block-size", "32"],
            "budget is 50, but must be at least 64: room for 52 tokens (sink + recent + one step",
        ),
        (["--growpage-config", "nowhere.yaml"], "cannot read the configuration file nowhere.yaml"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(arguments: list[str], message: str) -> None:
    begin = time.monotonic()
    line = only_line(serve("some-model", *arguments))
    assert message in line
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("policy: [", "is not valid YAML"),
        ("- policy", "must hold a mapping of settings"),
        ("polcy: fixed", "polcy is not a setting; the settings are policy, budget"),
        ('{"budget": 0}', "budget is 0, but must be an integer, at least 1"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "budget.yaml"
    file.write_text(content)
    line = only_line(serve("some-model", "--growpage-config", str(file)))
    assert str(file) in line
    assert message in line


@pytest.mark.parametrize(
    ("config", "reason"),
    [(SLIDING_WINDOW, "sliding-window attention"), (MLA, "multi-head latent attention (MLA)")],
    ids=["sliding-window", "mla"],
)
def test_an_unsupported_model_is_refused_by_name(
    tmp_path: Path, config: dict[str, object], reason: str
) -> None:
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    line = only_line(serve(str(model), "--skip-tokenizer-init"))
    assert f"{model} uses {reason}" in line
    assert "serve it with plain vLLM" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--kv-cache-dtype", "fp8_inc"],
            "--kv-cache-dtype fp8_inc is not supported; use auto, or",
        ),
        (["--pipeline-parallel-size", "2"], "--pipeline-parallel-size 2 is not supported yet"),
        (["--growpage-step", "96"], "step is 96, but must be a multiple of the block size, 128"),
    ],
)
def test_an_unsupported_mode_is_refused(
    smollm2_path: Path, arguments: list[str], message: str
) -> None:
    assert message in only_line(serve(str(smollm2_path), *arguments))


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert f"vLLM cannot serve {missing}" in only_line(serve(str(missing)))

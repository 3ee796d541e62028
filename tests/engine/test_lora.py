"""LoRA adapters on and off: plain tokens where nothing is evicted, no leak where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.engine.engines import Engine, StartEngine, prompt_of
from tests.engine.tiny_models import tiny_llama

pytestmark = pytest.mark.engine

RANK = 8


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of the tiny Llama's query and value projections, large enough to change tokens."""
    folder = tmp_path_factory.mktemp("adapter")
    model = json.loads((tiny_llama(tmp_path_factory) / "config.json").read_text())
    hidden, dim = model["hidden_size"], model["head_dim"]
    heads = {"q_proj": model["num_attention_heads"], "v_proj": model["num_key_value_heads"]}
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(model["num_hidden_layers"]):
        for name, count in heads.items():
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{key}.lora_A.weight"] = torch.randn(RANK, hidden, generator=generator)
            weights[f"{key}.lora_B.weight"] = torch.randn(count * dim, RANK, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(heads)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def answers(engine: Engine, adapter: Path, tokens: int) -> list[tuple[int, ...]]:
    """A request with the adapter, then one without: vLLM's CPU kernels do not tell them apart when
    they are in one batch."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    said = []
    for lora in (LoRARequest("adapter", 1, str(adapter)), None):
        (output,) = engine.llm.generate(
            [{"prompt_token_ids": prompt_of(20)}],
            SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True),
            lora_request=lora,
            use_tqdm=False,
        )
        said.append(tuple(output.outputs[0].token_ids))
    engine.assert_pool_is_whole()
    return said


def test_adapters(start_engine: StartEngine, adapter: Path) -> None:
    settings: dict[str, Any] = {"enable_lora": True, "max_lora_rank": RANK, "max_loras": 1}
    plain = answers(start_engine(**settings), adapter, 60)
    assert plain[0] != plain[1], "the adapter changes nothing"
    engine = start_engine({"policy": "fixed", "budget": 96}, **settings)
    assert answers(engine, adapter, 60) == plain
    assert engine.scheduler.ledger.compressions == 0
    assert [len(tokens) for tokens in answers(engine, adapter, 200)] == [200, 200]
    assert engine.scheduler.ledger.compressions > 0


def test_only_a_selected_adapter_is_compressed(
    start_engine: StartEngine, adapter: Path, tmp_path: Path
) -> None:
    rollout = tmp_path / "rollout.yaml"
    rollout.write_text("max_growth_rate: null\nonly: {adapters: [adapter]}\n")
    settings: dict[str, Any] = {"enable_lora": True, "max_lora_rank": RANK, "max_loras": 1}
    plain = answers(start_engine(**settings), adapter, 200)
    engine = start_engine(
        {},
        additional_config={
            "growpage": {"policy": "fixed", "budget": 96},
            "growpage_operations": {"rollout": str(rollout)},
        },
        **settings,
    )
    with_adapter, without = answers(engine, adapter, 200)
    assert engine.scheduler.ledger.compressions > 0
    assert with_adapter != plain[0]
    assert without == plain[1]

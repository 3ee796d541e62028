"""What is not supported is refused at start, in one sentence that says what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import CUDAGraphMode

from growpage.budget.errors import ConfigError
from growpage.engine import checks
from growpage.engine.checks import UnsupportedError, check_engine, check_vllm


def test_the_installed_vllm_is_supported() -> None:
    check_vllm()


@pytest.mark.parametrize("version", ["0.31.4", "0.34.0", "1.0.0"])
def test_another_vllm_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(checks, "vllm_version", lambda: version)
    with pytest.raises(
        UnsupportedError, match=rf"vLLM {version} is not supported; install vLLM 0.32 or 0.33,"
    ):
        check_vllm()


def test_no_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "vllm_version", lambda: None)
    with pytest.raises(UnsupportedError, match="vLLM is not installed; install growpage"):
        check_vllm()


def test_an_overridden_method_with_another_signature_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    def allocate_new_blocks(self: Any, request_id: str, num_tokens: int, lease: int) -> None:
        pass

    monkeypatch.setattr(FullAttentionManager, "allocate_new_blocks", allocate_new_blocks)
    with pytest.raises(UnsupportedError, match=r"allocate_new_blocks of this vLLM .* lease\)"):
        check_vllm()


def test_a_vllm_without_a_seam_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.block_pool import BlockPool

    monkeypatch.delattr(BlockPool, "is_block_writable")
    with pytest.raises(UnsupportedError, match=r"has no .*:BlockPool.is_block_writable"):
        check_vllm()


def engine_config(**changes: Any) -> Any:
    """What the checks read of a vLLM configuration, for a model that is supported."""
    model = SimpleNamespace(
        served_model_name="tiny",
        model="tiny",
        hf_text_config=SimpleNamespace(),
        runner_type="generate",
        is_encoder_decoder=False,
        use_mla=False,
        is_attention_free=False,
        is_hybrid=False,
        is_moe=False,
        has_inner_state=False,
        get_sliding_window=lambda: changes.get("sliding_window"),
        get_head_size=lambda: changes.get("head_size", 64),
        uses_alibi=False,
        uses_mrope=False,
        is_multimodal_model=False,
    )
    parallel = SimpleNamespace(
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
    )
    cache = SimpleNamespace(
        block_size=32,
        user_specified_block_size=True,
        cache_dtype="auto",
        kv_cache_dtype_skip_layers=[],
        kv_sharing_fast_prefill=False,
    )
    config = SimpleNamespace(
        model_config=model,
        parallel_config=parallel,
        cache_config=cache,
        use_v2_model_runner=False,
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.NONE),
        speculative_config=None,
        kv_transfer_config=None,
        lora_config=None,
        additional_config={"growpage": changes.get("budget", {})},
    )
    parts = (model, parallel, cache, config, config.compilation_config, model.hf_text_config)
    for part in parts:
        for name, value in changes.items():
            if name in vars(part) or part is model.hf_text_config:
                setattr(part, name, value)
    return config


def test_a_supported_engine_passes() -> None:
    check_engine(engine_config())
    check_engine(engine_config(tensor_parallel_size=2))
    check_engine(engine_config(data_parallel_size=2))


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_an_eight_bit_cache_passes_on_a_cpu_with_its_kernel(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(checks, "has_eight_bit_kernel", lambda: True)
    check_engine(engine_config(cache_dtype=dtype))
    monkeypatch.setattr(checks, "has_eight_bit_kernel", lambda: False)
    with pytest.raises(UnsupportedError, match=f"{dtype} needs a CPU with AVX-512 or AMX"):
        check_engine(engine_config(cache_dtype=dtype))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_v2_model_runner": True}, "V2 needs Triton.*; set VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"use_mla": True}, r"tiny uses multi-head latent attention \(MLA\)"),
        ({"sliding_window": 512}, r"tiny uses sliding-window attention \(512 tokens\)"),
        ({"is_hybrid": True}, "tiny has recurrent"),
        ({"is_encoder_decoder": True}, "tiny is an encoder-decoder model"),
        ({"runner_type": "pooling"}, "tiny is a pooling model"),
        ({"uses_alibi": True}, "tiny uses ALiBi"),
        ({"is_multimodal_model": True}, "tiny is a multimodal model"),
        ({"attn_logit_softcapping": 50.0}, "tiny caps its attention logits"),
        ({"attention_chunk_size": 8192}, "tiny uses chunked local attention"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2 is not supported yet"),
        (
            {"data_parallel_size": 4, "is_moe": True},
            "--data-parallel-size 4 is not supported for mixture-of-experts models yet",
        ),
        ({"decode_context_parallel_size": 2}, "--decode-context-parallel-size 2"),
        ({"speculative_config": object()}, "leave out --speculative-config"),
        ({"kv_transfer_config": object()}, "leave out --kv-transfer-config"),
        ({"cache_dtype": "fp8", "lora_config": object()}, "set --growpage-centre-keys false"),
        ({"cache_dtype": "fp8_inc"}, "--kv-cache-dtype fp8_inc is not supported; use auto, or"),
        ({"cache_dtype": "nvfp4"}, "--kv-cache-dtype nvfp4 is not supported"),
        (
            {"cache_dtype": "int8_per_token_head"},
            "--kv-cache-dtype int8_per_token_head is not supported",
        ),
        ({"cache_dtype": "fp8", "head_size": 80}, "and this model's is 80; use auto"),
        (
            {"cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["0", "1"]},
            "--kv-cache-dtype-skip-layers 0 1 is not supported",
        ),
        ({"kv_sharing_fast_prefill": True}, "--kv-sharing-fast-prefill is not supported"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_unsupported_engine_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(checks, "has_eight_bit_kernel", lambda: True)
    with pytest.raises(UnsupportedError, match=message) as refusal:
        check_engine(engine_config(**change))
    assert "\n" not in str(refusal.value)


def test_model_runner_v2_is_supported_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.triton_utils.importing.HAS_TRITON", True)
    check_engine(engine_config(use_v2_model_runner=True))
    graphs = {"cudagraph_mode": CUDAGraphMode.FULL_AND_PIECEWISE}
    check_engine(engine_config(**graphs))  # V1 replays no full graph around attention
    with pytest.raises(UnsupportedError, match="cudagraph_mode FULL_AND_PIECEWISE is not support"):
        check_engine(engine_config(use_v2_model_runner=True, **graphs))


def test_another_signature_in_model_runner_v2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def prepare_attn(self: Any, input_batch: Any, lease: int) -> None:
        pass

    monkeypatch.setattr("vllm.triton_utils.importing.HAS_TRITON", True)
    monkeypatch.setattr(GPUModelRunner, "prepare_attn", prepare_attn)
    check_engine(engine_config())
    with pytest.raises(UnsupportedError, match=r"prepare_attn of this vLLM .* lease\)"):
        check_engine(engine_config(use_v2_model_runner=True))


def test_a_budget_that_does_not_fit_the_block_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="step is 48, but must be a multiple of the block size"):
        check_engine(engine_config(budget={"step": 48}))

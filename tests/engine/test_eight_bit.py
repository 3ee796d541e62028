"""The 8-bit cache with centred keys: as good as an exact one where vLLM's own is ruined."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from growpage.engine import calibration
from growpage.engine.attention_layers import attention_layers
from growpage.engine.checks import has_eight_bit_kernel
from growpage.engine.cpu_layout import cpu_page_layout
from growpage.kvcache.layout import LAYOUTS, LayoutError
from tests.engine.engines import NO_EIGHT_BIT_KERNEL, PAGE, Engine, StartEngine
from tests.engine.tiny_models import tiny_qwen2

pytestmark = pytest.mark.engine

PROMPTS = [[(7 * n + t * t) % 250 for t in range(20 + 45 * n)] for n in range(5)]


class Start:
    """Starts engines of the model with large keys."""

    def __init__(self, start_engine: StartEngine, model: Path) -> None:
        self._start_engine = start_engine
        self._model = model

    def __call__(
        self, budget: dict[str, Any] | None, cache: str = "fp8", **settings: Any
    ) -> Engine:
        return self._start_engine(
            budget,
            model=self._model,
            dtype="float32",
            kv_cache_dtype=cache,
            max_logprobs=256,
            **settings,
        )


@pytest.fixture
def start(
    start_engine: StartEngine, tmp_path_factory: pytest.TempPathFactory, own_centres: Path
) -> Start:
    return Start(start_engine, tiny_qwen2(tmp_path_factory, key_offset=200))


def layers(engine: Engine) -> list[Any]:
    return list(attention_layers(engine.runner.vllm_config).values())


def answers(engine: Engine) -> list[Any]:
    """vLLM's outputs of one token for each prompt, with what it thought of all others."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=1, logprobs=256, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs: list[Any] = engine.llm.generate(prompts, sampling, use_tqdm=False)
    return outputs


def predictions(outputs: list[Any]) -> Tensor:
    """Log-probabilities of what follows each prompt: ``[prompts, 256]``."""
    first = [output.outputs[0].logprobs[0] for output in outputs]
    return torch.tensor([[token[value].logprob for value in range(256)] for token in first])


def loss(exact: Tensor, other: Tensor) -> float:
    """The largest divergence of any prediction."""
    return float((exact.exp() * (exact - other)).sum(dim=-1).max())


# ---- what it is for ------------------------------------------------------------------------------


def test_centred_keys_are_near_the_exact_cache_and_others_are_ruined(start: Start) -> None:
    exact = predictions(answers(start(None, "auto")))
    plain = loss(exact, predictions(answers(start(None))))
    uncentred = loss(exact, predictions(answers(start({"policy": "full", "centre_keys": False}))))
    centred = loss(exact, predictions(answers(start({"policy": "full"}))))
    assert plain > 0.1
    assert uncentred == plain, "centre_keys=False is vLLM's own cache"
    assert centred < 0.01


def test_the_stored_keys_are_small(start: Start) -> None:
    engine = start({"policy": "full"})
    engine.generate(PROMPTS, 2)
    for layer in layers(engine):
        assert layer.impl.centre.vector.abs().max() > 200
        keys, values = layer.kv_cache.view(torch.float8_e4m3fn).float().flatten(2).chunk(2, dim=2)
        assert 0 < keys.abs().max() < 20
        assert values.abs().max() > 0


def test_chunks_of_a_prompt_are_centred_alike(start: Start) -> None:
    """Prompts longer than the batch: one softmax spans keys of several steps."""
    chunked = start({"policy": "full"}, max_num_batched_tokens=64)
    assert loss(predictions(answers(start(None, "auto"))), predictions(answers(chunked))) < 0.01


def test_a_prefix_that_is_found_in_the_cache_is_centred_too(start: Start) -> None:
    engine = start({"policy": "full"}, enable_prefix_caching=True)
    cold, warm = answers(engine), answers(engine)
    assert [output.num_cached_tokens for output in cold] == [0] * len(PROMPTS)
    assert sum(output.num_cached_tokens for output in warm) >= 5 * PAGE
    assert loss(predictions(cold), predictions(warm)) < 1e-4


@pytest.mark.parametrize("cache", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize(
    "budget",
    [
        {"policy": "fixed", "budget": 128},
        {"policy": "growpage", "min_pages": 2, "score": "summary", "tau": 1e9},
    ],
    ids=["fixed", "growpage"],
)
def test_policies_compress_eight_bit_pages(
    start: Start, budget: dict[str, Any], cache: str
) -> None:
    engine = start(budget, cache)
    engine.generate(PROMPTS, 150)
    assert engine.scheduler.ledger.compressions >= 10


def test_nothing_is_centred_in_a_cache_that_is_exact(start: Start) -> None:
    engine = start({"policy": "fixed", "budget": 512}, "auto")
    assert {layer.impl.centre for layer in layers(engine)} == {None}


# ---- calibration ---------------------------------------------------------------------------------


@contextmanager
def calibrations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The centres that are calibrated, not read, meanwhile."""
    found: list[Tensor] = []
    calibrate = calibration.calibrate

    def watched(*args: Any) -> Tensor:
        found.append(calibrate(*args))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(calibration, "calibrate", watched)
        yield found


def centres(engine: Engine) -> Tensor:
    return torch.stack([layer.impl.centre.vector for layer in layers(engine)])


def test_a_restart_reads_the_stored_centre_and_replaces_a_broken_one(
    start: Start,
    own_centres: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A context of its own, so that no other test has calibrated for it.
    settings = {"max_model_len": 896}
    known = set(own_centres.glob("*"))
    with calibrations(monkeypatch) as calibrated:
        first = start({"policy": "full"}, **settings, max_num_seqs=5)
        assert len(calibrated) == 1
        (path,) = set(own_centres.glob("*")) - known
        again = start({"policy": "full"}, **settings, max_num_seqs=6)
        assert len(calibrated) == 1
        assert torch.equal(centres(again), centres(first))

        path.write_bytes(path.read_bytes()[:-5])
        with caplog.at_level(logging.WARNING, logger=calibration.logger.name):
            calibration.logger.addHandler(caplog.handler)
            third = start({"policy": "full"}, **settings, max_num_seqs=7)
            calibration.logger.removeHandler(caplog.handler)
        assert len(calibrated) == 2
        assert str(path) in caplog.text
        assert torch.allclose(centres(third), centres(first))
        assert set(own_centres.glob("*")) - known == {path}
        start({"policy": "full"}, **settings, max_num_seqs=8)
        assert len(calibrated) == 2


def test_calibration_sees_the_keys_of_real_attention(start: Start) -> None:
    """The stand-in computes what vLLM's kernel does: the second layer's keys depend on it."""
    engine = start({"policy": "full"})
    runner = engine.runner
    prompts = calibration.calibration_prompts(runner.vllm_config)
    measured = calibration.calibrate(runner.model, runner.vllm_config, layers(engine), prompts)
    assert torch.allclose(measured, centres(engine), atol=1e-4)
    exact = start({"policy": "fixed", "budget": 512}, "auto")
    sums = torch.zeros(2, 2, 64, dtype=torch.float64)
    prompt = list(prompts[0].tokens[:96])
    exact.generate([prompt], 1, lambda: sums.copy_(_mean_keys(exact, len(prompt))))
    alone = calibration.calibrate(
        runner.model,
        runner.vllm_config,
        layers(engine),
        [calibration.CalibrationPrompt(tuple(prompt), 0)],
    )
    assert torch.allclose(alone.double(), sums, rtol=1e-4, atol=1e-3)


def _mean_keys(engine: Engine, tokens: int) -> Tensor:
    """Of the request that has just been prefilled, from its pages: ``[layers, heads, dim]``."""
    pages = torch.tensor(next(iter(engine.runner.requests.values())).block_ids[0])
    keys = engine.runner.budgeter.cache.keys(slice(0, 2), pages)
    return keys[:, :, :tokens].double().mean(dim=2)


def test_texts_are_spread_over_the_context(start: Start) -> None:
    config = start({"policy": "full"}).runner.vllm_config
    prompts = calibration.calibration_prompts(config)
    assert [(prompt.start, len(prompt.tokens)) for prompt in prompts] == [
        (0, 512),
        (16, 512),
        (128, 512),
        (512, 512),
    ]


# ---- the layout of 8-bit pages -------------------------------------------------------------------


needs_kernel = pytest.mark.skipif(not has_eight_bit_kernel(), reason=NO_EIGHT_BIT_KERNEL)


@needs_kernel
@pytest.mark.parametrize("cache_dtype", ["fp8", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("tokens", [32, 128])
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_the_layout_of_this_machine_is_known(cache_dtype: str, tokens: int, dim: int) -> None:
    names = {torch.float32: "vec", torch.float16: "vec"}
    if torch.cpu._is_amx_tile_supported():
        names[torch.bfloat16] = "amx"
    for dtype, name in names.items():
        assert cpu_page_layout(name, tokens, dim, dtype, cache_dtype) is LAYOUTS[name]


@needs_kernel
def test_a_scale_that_means_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import _custom_ops

    store = _custom_ops.cpu_attn_reshape_and_cache

    def multiply(*args: Any, k_scale: float, v_scale: float, **kwargs: Any) -> None:
        store(*args, k_scale=1 / k_scale, v_scale=1 / v_scale, **kwargs)

    monkeypatch.setattr(_custom_ops, "cpu_attn_reshape_and_cache", multiply)
    with pytest.raises(LayoutError, match="stores keys otherwise"):
        cpu_page_layout("vec", 32, 64, torch.float32, "fp8")

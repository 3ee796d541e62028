"""Model families, head shapes and rotations: what is remembered of their queries, and refusals.

Each family generates under two small budgets and gives everything back, is plain vLLM while its
budget is not full, and its queries are rotated back to what they were before RoPE. The cases
cover pairs of (rotation, head size, group size, family), not all combinations.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from growpage.budget.rope import Rotary
from growpage.budget.summaries import QueryWindow
from growpage.engine.checks import UnsupportedError
from growpage.engine.rotation import prove_rotary
from tests.engine.engines import Engine, StartEngine
from tests.engine.tiny_models import tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LINEAR = {"rope_type": "linear", "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


def longrope(pairs: int, original: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.01 * i for i in range(pairs)],
        "long_factor": [2.0 + 0.1 * i for i in range(pairs)],
        "original_max_position_embeddings": original,
    }


@dataclass(frozen=True)
class Case:
    """A model; ``heads`` are (query heads, KV heads)."""

    family: str
    head_size: int
    heads: tuple[int, int]
    config: dict[str, Any] = field(default_factory=dict)
    rope: dict[str, Any] | None = None

    def folder(self, folders: pytest.TempPathFactory) -> Path:
        heads, kv_heads = self.heads
        return tiny_model(
            folders,
            self.family,
            head_size=self.head_size,
            heads=heads,
            kv_heads=kv_heads,
            rope=self.rope,
            **self.config,
        )


CASES = {
    "llama-llama3": Case("Llama", 64, (4, 4), rope=LLAMA3),
    "llama-linear": Case("Llama", 128, (8, 1), rope=LINEAR),
    "llama-dynamic": Case("Llama", 80, (4, 1), rope=DYNAMIC),
    "qwen2": Case("Qwen2", 80, (8, 2)),
    "qwen3-yarn": Case("Qwen3", 128, (6, 2), rope=YARN),
    "mistral-yarn": Case("Mistral", 96, (8, 2), {"sliding_window": None}, YARN),
    "phi3-partial": Case("Phi3", 96, (4, 4), rope={"partial_rotary_factor": 0.75}),
    "phi3-longrope": Case("Phi3", 64, (6, 2), rope=longrope(32, original=256)),
    "phi3-shortrope": Case("Phi3", 64, (4, 1), rope=longrope(32, original=1024)),
    "gemma": Case("Gemma", 128, (4, 4), {"hidden_size": 192}),
    "cohere": Case("Cohere", 64, (8, 1), {"use_qk_norm": True}),
    "glm4-partial": Case("Glm4", 96, (6, 2), rope={"partial_rotary_factor": 0.5}),
    "gptj": Case("GPTJ", 80, (4, 4), {"rotary_dim": 32}),
}
PROMPTS = [[(7 * n + t) % 250 for t in range(20 + 20 * n)] for n in range(2)]
TOKENS = 112
GROWPAGE = {
    "policy": "growpage",
    "score": "summary",
    "min_pages": 3,
    "max_pages": 4,
    "warmup": 8,
}


def start(start_engine: StartEngine, model: Path, budget: Any) -> Engine:
    know_architecture(model)
    return start_engine(budget, model=model, dtype="float32", pages=32)


def know_architecture(model: Path) -> None:
    """Import the model's class here, or vLLM asks a process of its own, which takes it seconds."""
    from vllm.model_executor.models.registry import ModelRegistry, _LazyRegisteredModel

    (name,) = json.loads((model / "config.json").read_text())["architectures"]
    entry = ModelRegistry.models[name]
    if isinstance(entry, _LazyRegisteredModel):
        ModelRegistry.register_model(name, entry.load_model_cls())


@pytest.mark.engine
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_supported_model(
    start_engine: StartEngine, tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    model = case.folder(tmp_path_factory)
    plain = start(start_engine, model, None)
    fixed = start(start_engine, model, {"policy": "fixed", "budget": 96})
    growpage = start(start_engine, model, GROWPAGE)
    with queries_before_rope(growpage) as seen:
        outputs = growpage.generate(PROMPTS, TOKENS)
    assert seen.updates > 200
    assert seen.worst_query < 1e-5
    assert seen.worst_summary < 1e-5
    assert [len(tokens) for tokens in outputs] == [TOKENS] * len(PROMPTS)
    assert growpage.scheduler.ledger.compressions > 0
    assert growpage.scheduler.ledger.preemptions == 0

    fixed.generate(PROMPTS, 80)
    assert fixed.scheduler.ledger.compressions > 0

    before = growpage.scheduler.ledger.compressions, fixed.scheduler.ledger.compressions
    expected = plain.generate(PROMPTS, 36)
    assert growpage.generate(PROMPTS, 36) == expected
    assert fixed.generate(PROMPTS, 36) == expected
    assert before == (growpage.scheduler.ledger.compressions, fixed.scheduler.ledger.compressions)


REFUSED = {
    "mistral": (
        Case("Mistral", 64, (4, 2), {"sliding_window": 64}),
        r"uses sliding-window attention \(64 tokens\)",
    ),
    "gemma2": (Case("Gemma2", 64, (4, 2)), "uses sliding-window attention"),
    "gemma2-global": (
        Case("Gemma2", 64, (4, 2), {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
        "caps its attention logits",
    ),
    "gemma3": (Case("Gemma3", 64, (4, 2)), "uses sliding-window attention"),
    "smollm3": (
        Case("SmolLM3", 64, (4, 2), {"no_rope_layers": [1, 0]}),
        "cannot tell how it rotates its queries, which the policies growpage, elastic and",
    ),
}


@pytest.mark.engine
@pytest.mark.parametrize(("case", "message"), REFUSED.values(), ids=REFUSED)
def test_a_model_that_cannot_be_right_is_refused(
    start_engine: StartEngine, tmp_path_factory: pytest.TempPathFactory, case: Case, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message) as refusal:
        start(start_engine, case.folder(tmp_path_factory), {"policy": "growpage"})
    assert "\n" not in str(refusal.value)


class NoRotation(nn.Module):
    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key


class NormAfterRotation(nn.Module):
    """A query norm whose weights differ by dimension, as Hunyuan's, does not commute with RoPE."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        query, key = self.rotary(positions, query, key)
        return query * torch.linspace(0.5, 2, query.shape[-1]), key


@pytest.mark.engine
@pytest.mark.parametrize("kind", [NoRotation, NormAfterRotation])
def test_a_layer_that_rotates_otherwise_is_noticed(
    start_engine: StartEngine, tmp_path_factory: pytest.TempPathFactory, kind: type[nn.Module]
) -> None:
    """Tried on the real model, one of whose layers is changed for the test."""
    case = CASES["llama-llama3"]
    runner = start(start_engine, case.folder(tmp_path_factory), GROWPAGE).runner
    rotary = runner.budgeter.rotary
    prove_rotary(rotary, runner._queries_at, 1024, 1e-4)
    attention = runner.model.model.layers[1].self_attn
    before = attention.rotary_emb
    attention.rotary_emb = NoRotation() if kind is NoRotation else NormAfterRotation(before)
    try:
        with pytest.raises(UnsupportedError, match="layer 1 does not rotate its queries"):
            prove_rotary(rotary, runner._queries_at, 1024, 1e-4)
    finally:
        attention.rotary_emb = before


@pytest.mark.engine
def test_a_model_whose_rotation_is_unknown_works_without_summaries(
    start_engine: StartEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case, _ = REFUSED["smollm3"]
    budget = {"policy": "fixed", "budget": 96, "score": "window"}
    engine = start(start_engine, case.folder(tmp_path_factory), budget)
    engine.generate(PROMPTS, TOKENS)
    assert engine.scheduler.ledger.compressions > 0


class QueryWatch:
    """Compares what the budgeter makes of queries with the queries that enter the rotation."""

    def __init__(self, engine: Engine) -> None:
        self.runner = engine.runner
        self.shape = self.runner.budgeter.shape
        self.entered: list[Tensor] = []
        self.history: dict[str, list[Tensor]] = defaultdict(list)
        self.updates = 0
        self.worst_query = 0.0
        self.worst_summary = 0.0

    def enters(self, query: Tensor) -> None:
        """A layer's query ``[tokens, heads * dim]`` on its way into the rotation."""
        self.entered.append(query.view(-1, self.shape.query_heads, self.shape.head_size).clone())

    def noted(self) -> None:
        """The step's decode queries are in the windows: remember those that entered."""
        rows = self.runner._rows
        assert len(self.entered) == self.shape.layers
        true = torch.stack(self.entered, dim=1)  # [tokens, layers, heads, dim]
        last = torch.from_numpy(rows.tokens.cumsum() - 1)
        decoding = torch.from_numpy(rows.decodes)
        for row, query in zip(decoding.nonzero()[:, 0].tolist(), true[last[decoding]], strict=True):
            self.history[rows.request_ids[row]].append(query)

    def taken_in(self, slot: int, plain: Tensor) -> None:
        """The budgeter took in ``plain [n, layers, heads, dim]``, a request's last decodes."""
        (request_id,) = (
            name for name, other in self.runner.budgeter._slots.items() if other == slot
        )
        expected = torch.stack(self.history[request_id][-len(plain) :])
        error = (plain - expected).norm(dim=-1) / expected.norm(dim=-1)
        self.worst_query = max(self.worst_query, error.max().item())
        self.updates += len(plain)
        self.compare_summaries(request_id, torch.stack(self.history[request_id]).double())

    def compare_summaries(self, request_id: str, queries: Tensor) -> None:
        """Both averages against their definition: bias-corrected sums of weighted queries."""
        budgeter = self.runner.budgeter
        averages = budgeter.averages(budgeter._slots[request_id])
        config = budgeter.config
        for average, beta in zip(averages, (config.beta_short, config.beta_long), strict=True):
            weights = beta ** torch.arange(len(queries) - 1, -1, -1, dtype=torch.float64)
            expected = torch.einsum("t,tlhd->lhd", weights / weights.sum(), queries)
            # Of the queries' size: an average of queries that cancel out is small.
            error = (average - expected).norm(dim=-1) / queries.norm(dim=-1).mean(dim=0)
            self.worst_summary = max(self.worst_summary, error.max().item())


@contextmanager
def queries_before_rope(engine: Engine) -> Iterator[QueryWatch]:
    """Watch the rotary modules and the summaries for the time of a test."""
    watch = QueryWatch(engine)
    summaries = engine.runner.budgeter.summaries
    note, take_in_from = summaries.note, summaries.take_in_from

    def note_and_remember(slots: np.ndarray) -> None:
        note(slots)
        watch.noted()

    def take_in_and_compare(window: QueryWindow, slot: int, rotary: Rotary) -> None:
        pending = int(summaries.pending[slot])
        take_in_from(window, slot, rotary)
        if pending:
            places, positions = window.places(slot, pending)
            plain = rotary.unrotate(window.ring[:, places], torch.tensor(positions).view(-1, 1))
            watch.taken_in(slot, plain.transpose(0, 1))

    modules = engine.runner.model.named_modules()
    rotary = {id(m): m for name, m in modules if name.endswith("rotary_emb")}
    handles = [
        module.register_forward_pre_hook(lambda _, args: watch.enters(args[1]))
        for module in rotary.values()
    ]
    handles.append(engine.runner.model.register_forward_pre_hook(lambda *_: watch.entered.clear()))
    summaries.note, summaries.take_in_from = note_and_remember, take_in_and_compare
    try:
        yield watch
    finally:
        del summaries.note, summaries.take_in_from
        for handle in handles:
            handle.remove()

"""The engine in float32 says, token for token, what plain Hugging Face transformers says when its
cache is cut by an implementation that shares no code with growpage (``hf_oracle``).

Tokens alone would hide small differences, so the log-probability of every token is compared too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.engines import PAGE, Engine, StartEngine
from tests.engine.hf_oracle import Oracle, Rules, Trace

pytestmark = pytest.mark.engine

NEAR_TIE = 1e-3
"""Logits. Float32 sums taken in another order may swap two tokens that are closer than this."""
TOLERANCE = 1e-3
"""Log-probability. Observed: 3e-5. A single different survivor among hundreds: about 1e-2."""
DELTA_TOLERANCE = 0.02
"""Tokens. Rounding may move ``D_p`` of a few query heads, of 270, by one."""

DIARY = (
    "The lighthouse keeper wrote in his diary: "
    '"Today the sea was calm, and a strange ship came into the harbour'
)
MUSEUM = (
    "The museum keeps its oldest things in the cellar: a whale's jaw, a tray of green beetles, and "
    "a clock that was made for a king who never paid for it. The clock has three hands, and nobody "
    "knows what the third is for. Every evening the guide, old Martha, walks down and"
)
EXPEDITION = (
    "Notes for the expedition. The party leaves Bergen on the third of May with two boats, eleven "
    "men and forty dogs. Captain Olsen commands the first boat, the Aurora, and Lieutenant Hansen "
    "the second, the Petrel. The stores are 900 pounds of flour, 300 pounds of dried fish, 40 "
    "pounds of coffee, 12 rifles, 6 tents and a small piano that the cook refuses to leave behind. "
    "The route goes north along the coast to Tromso, where the doctor, Miss Lund, comes aboard "
    "with the medicine chest, and then west across the open sea to Jan Mayen. On the island the "
    "men will build a hut of driftwood, measure the wind every hour, and collect moss, birds' eggs "
    "and stones. If the ice comes early, the Petrel turns back with half of the men and the Aurora "
    "stays for the winter. The first entry in the captain's log reads as follows:"
)


@dataclass
class Answers:
    """What one engine said, and what it did to its cache meanwhile."""

    prompts: list[list[int]]
    tokens: list[list[int]]
    logprobs: list[np.ndarray]
    compressions: int
    evicted: int
    growths: int


def ask(engine: Engine, texts: list[str], new_tokens: int) -> Answers:
    """Greedy answers to all ``texts`` in one batch."""
    from vllm import SamplingParams

    tokenizer = engine.llm.get_tokenizer()
    prompts = [tokenizer(text).input_ids for text in texts]
    ledger = engine.scheduler.ledger
    before = np.array((ledger.compressions, ledger.evicted_tokens, ledger.growths))
    outputs = engine.llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=0),
        use_tqdm=False,
    )
    done = np.array((ledger.compressions, ledger.evicted_tokens, ledger.growths)) - before
    said = [output.outputs[0] for output in outputs]
    tokens = [list(answer.token_ids) for answer in said]
    assert [len(answer) for answer in tokens] == [new_tokens] * len(texts)
    logprobs = [
        np.array([place[token].logprob for place, token in zip(answer.logprobs, ids, strict=True)])
        for answer, ids in zip(said, tokens, strict=True)
    ]
    return Answers(prompts, tokens, logprobs, *map(int, done))


def start(start_engine: StartEngine, model: Path, **budget: Any) -> Engine:
    """A float32 engine whose token batch is shorter than the longest prompt."""
    return start_engine(
        budget, model=model, dtype="float32", max_num_seqs=4, max_num_batched_tokens=128
    )


def assert_same(prompt: list[int], answers: Answers, index: int, trace: Trace) -> None:
    """The answer is what the oracle says, or a near tie of it, everywhere."""
    tokens = answers.tokens[index]
    for place, (ours, theirs, gap) in enumerate(zip(trace.greedy, tokens, trace.gaps, strict=True)):
        assert gap <= NEAR_TIE, (
            f"prompt of {len(prompt)} tokens, token {place}: the engine says {theirs}, the oracle "
            f"{ours}, whose logit is {gap:.2g} higher"
        )
    error = np.abs(np.array(trace.logprobs) - answers.logprobs[index])
    worst = int(error.argmax())
    assert error[worst] <= TOLERANCE, (
        f"prompt of {len(prompt)} tokens, token {worst}: log-probabilities differ by {error[worst]}"
    )


def assert_compression_matters(oracle: Oracle, answers: Answers, index: int) -> bool:
    """Without compression the model is much more or less sure; whether it says something else."""
    tokens = answers.tokens[index]
    plain = oracle.follow(answers.prompts[index], tokens, Rules(page=PAGE, capacity=None))
    difference = np.abs(np.array(plain.logprobs) - answers.logprobs[index])
    assert difference.max() > 100 * TOLERANCE
    return plain.greedy != tokens


@pytest.fixture(scope="module")
def oracle(smollm2_path: Path) -> Oracle:
    return Oracle(smollm2_path)


@pytest.fixture(scope="module")
def fixed(start_engine: StartEngine, smollm2_path: Path) -> Answers:
    engine = start(start_engine, smollm2_path, policy="fixed", budget=96, protect_prompt=True)
    return ask(engine, [DIARY, MUSEUM, EXPEDITION], 144)


FIXED = Rules(page=PAGE, capacity=96, protect_prompt=True)


def test_fixed_budget(fixed: Answers, oracle: Oracle) -> None:
    """One prompt is protected, one is too long for that, and one is longer than the budget."""
    short, medium, long = map(len, fixed.prompts)
    assert short + FIXED.recent <= 64 < medium + FIXED.recent
    assert medium < 96 < long
    traces, changed = [], 0
    for index, (prompt, tokens) in enumerate(zip(fixed.prompts, fixed.tokens, strict=True)):
        traces.append(oracle.follow(prompt, tokens, FIXED))
        assert_same(prompt, fixed, index, traces[-1])
        changed += assert_compression_matters(oracle, fixed, index)
    assert changed, "no answer differs from the uncompressed one"
    assert min(trace.compressions for trace in traces) >= 3
    assert fixed.compressions == sum(trace.compressions for trace in traces)
    assert fixed.evicted == sum(trace.evicted for trace in traces)
    assert fixed.growths == 0


def test_fixed_budget_token_by_token(fixed: Answers, oracle: Oracle) -> None:
    """The oracle left to itself, and without its short cut of reading many tokens at once."""
    said, trace = oracle.generate(fixed.prompts[2], 40, FIXED)
    assert trace.compressions == 2
    assert said == fixed.tokens[2][:40]


def test_a_score_without_attention(
    start_engine: StartEngine, smollm2_path: Path, oracle: Oracle
) -> None:
    engine = start(start_engine, smollm2_path, policy="fixed", budget=64, score="streaming")
    answers = ask(engine, [DIARY], 80)
    rules = Rules(page=PAGE, capacity=64, score="streaming")
    trace = oracle.follow(answers.prompts[0], answers.tokens[0], rules)
    assert_same(answers.prompts[0], answers, 0, trace)
    assert_compression_matters(oracle, answers, 0)
    assert answers.compressions == trace.compressions >= 2


def test_growth_on_demand_and_eviction_by_query_averages(
    start_engine: StartEngine,
    smollm2_path: Path,
    oracle: Oracle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tau, warmup = 3.0, 64
    engine = start(
        start_engine,
        smollm2_path,
        policy="growpage",
        score="summary",
        min_pages=2,
        tau=tau,
        warmup=warmup,
    )
    measured: list[float | None] = []
    policy = engine.scheduler.policy
    decide = policy.decide

    def record(boundary: Any, pool: Any) -> Any:
        measured.append(boundary.demand and boundary.demand.delta)
        return decide(boundary, pool)

    monkeypatch.setattr(policy, "decide", record)
    answers = ask(engine, [DIARY, EXPEDITION], 144)
    traces = []
    for index, (prompt, tokens) in enumerate(zip(answers.prompts, answers.tokens, strict=True)):
        # A request starts with pages for its prompt and the recent tokens, and one more.
        pages = -(-(len(prompt) + 16) // PAGE) + 1
        rules = Rules(
            page=PAGE,
            capacity=pages * PAGE,
            may_grow=True,
            score="summary",
            tau=tau,
            warmup=warmup,
        )
        traces.append(oracle.follow(prompt, tokens, rules))
        assert_same(prompt, answers, index, traces[-1])
    expected = [delta for trace in traces for delta in trace.deltas]
    assert measured.count(None) == expected.count(None) > 0
    warm = sorted(delta for delta in expected if delta is not None)
    assert sorted(delta for delta in measured if delta is not None) == pytest.approx(
        warm, abs=DELTA_TOLERANCE
    )
    assert all(abs(delta - tau) > DELTA_TOLERANCE for delta in warm), "rounding may decide"
    assert answers.growths == sum(trace.growths for trace in traces) > measured.count(None)
    assert answers.compressions == sum(trace.compressions for trace in traces) > 1
    assert answers.evicted == sum(trace.evicted for trace in traces)

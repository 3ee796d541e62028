"""Right answers to maths problems, by how keys and values are stored.

    python -m growpage.bench.accuracy MODEL PROBLEMS --output RESULT.json

``PROBLEMS`` is a file with one JSON object a line: ``id``, ``question`` and ``answer``, a number.
Nothing is evicted, so that whatever differs from the first way is due to the dtype of the cache.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from growpage.bench.machine import describe_machine, describe_versions

INSTRUCTION = "Reason step by step, and put your final answer, a number, within \\boxed{}."

WAYS: dict[str, dict[str, Any]] = {
    "unquantised": {"kv_cache_dtype": "auto"},
    "fp8 centred": {"kv_cache_dtype": "fp8", "centre_keys": True},
    "fp8 uncentred": {"kv_cache_dtype": "fp8", "centre_keys": False},
}
"""The ways to store keys and values that are compared; all others are compared with the first."""


@dataclass(frozen=True)
class Problem:
    """A question whose answer is a number."""

    id: str
    question: str
    answer: float


def load_problems(path: Path, count: int) -> list[Problem]:
    """The first ``count`` problems of a file.

    Raises:
        ValueError: the file holds fewer.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()[:count]]
    if len(rows) < count:
        raise ValueError(f"{path} holds {len(rows)} problems, and {count} were asked for")
    return [Problem(row["id"], row["question"], _number(row["answer"])) for row in rows]


def final_number(text: str) -> float | None:
    """What an answer comes down to: the number in its last box, else its last number, or none."""
    boxes: list[str] = re.findall(r"\\boxed\{([^}]*)\}", text)
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", boxes[-1] if boxes else text)
    return _number(found[-1]) if found else None


def answer_all(
    model: str, problems: Sequence[Problem], way: str, *, max_tokens: int, batch: int, seed: int
) -> dict[str, Any]:
    """Let ``model`` answer greedily under ``way``, in an engine process of its own."""
    from vllm import LLM, SamplingParams

    from growpage import engine_kwargs

    settings = dict(WAYS[way])
    cache_dtype = settings.pop("kv_cache_dtype")
    engine = LLM(
        model,
        kv_cache_dtype=cache_dtype,
        max_num_seqs=batch,
        max_model_len=2048,
        kv_cache_memory_bytes=2 << 30,
        enforce_eager=True,
        seed=seed,
        **engine_kwargs(policy="full", **settings),
    )
    started = perf_counter()
    answers = engine.chat(
        [[{"role": "user", "content": f"{p.question}\n{INSTRUCTION}"}] for p in problems],
        SamplingParams(temperature=0, max_tokens=max_tokens),
        use_tqdm=False,
    )
    seconds = perf_counter() - started
    engine.llm_engine.engine_core.shutdown()
    texts = [answer.outputs[0].text for answer in answers]
    right = [final_number(text) == p.answer for p, text in zip(problems, texts, strict=True)]
    return {
        "right": sum(right),
        "verdicts": {p.id: verdict for p, verdict in zip(problems, right, strict=True)},
        "output_tokens": sum(len(answer.outputs[0].token_ids) for answer in answers),
        "cut_off": sum(answer.outputs[0].finish_reason == "length" for answer in answers),
        "seconds": round(seconds, 1),
        "settings": WAYS[way],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the ways on one set of problems, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("problems", type=Path)
    parser.add_argument("--count", type=int, default=32, help="problems, from the first on")
    parser.add_argument("--max-tokens", type=int, default=400, help="of an answer")
    parser.add_argument("--batch", type=int, default=32, help="problems at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    problems = load_problems(options.problems, options.count)
    results: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        results[way] = answer_all(
            options.model,
            problems,
            way,
            max_tokens=options.max_tokens,
            batch=options.batch,
            seed=options.seed,
        )
        verdicts, reference = results[way]["verdicts"], results[next(iter(WAYS))]["verdicts"]
        same = sum(verdicts[p.id] == reference[p.id] for p in problems)
        results[way]["same_verdict"] = same
        print(f"{way:15} {results[way]['right']:3} of {len(problems)} right, {same} as the first")
        report = {
            "model": Path(options.model).name,
            "problems": f"the first {options.count} of {options.problems.name}",
            "max_tokens": options.max_tokens,
            "batch": options.batch,
            "seed": options.seed,
            "instruction": INSTRUCTION,
            "results": results,
            "machine": describe_machine(),
            "versions": describe_versions(),
        }
        options.output.write_text(json.dumps(report, indent=2) + "\n")


def _number(text: str) -> float:
    return float(text.replace(",", ""))


if __name__ == "__main__":
    main()

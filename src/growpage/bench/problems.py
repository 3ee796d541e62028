"""Problems with known answers: from a JSONL file, a public data set, or a task family of ours.

A JSONL file has one object a line with ``question`` and ``answer``, and optionally ``id``,
``family``, ``grading``, ``remember`` and ``max_tokens``, as in :class:`Problem`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Grading = Literal["maths", "list", "lines"]
"""How an answer is judged: see :mod:`growpage.bench.grading`."""


class ProblemError(ValueError):
    """Problems that cannot be had; the message names the remedy."""


class Problem(BaseModel):
    """A question with its answer."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: str
    question: str = Field(min_length=1)
    """What the model is told, the wanted form of the answer included."""
    examples: tuple[tuple[str, str], ...] = ()
    """Questions and answers that are shown before, as turns of the conversation."""
    answer: str = Field(min_length=1)
    family: str
    """Problems of a kind, reported together."""
    grading: Grading = "maths"
    remember: str | None = None
    """The text that must be remembered until the answer ends; its tokens are the demand."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens after which the answer is cut; default: the benchmark's own."""


MATHS_INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class PublicSet:
    """Where a public data set lies, and what its fields are called."""

    path: str
    split: str
    question: str
    answer: Callable[[Mapping[str, Any]], str]
    configuration: str | None = None


PUBLIC: Mapping[str, PublicSet] = {
    "gsm8k": PublicSet(
        "openai/gsm8k",
        "test",
        "question",
        lambda row: str(row["answer"]).rpartition("####")[2].strip(),
        configuration="main",
    ),
    "math-500": PublicSet(
        "HuggingFaceH4/MATH-500", "test", "problem", lambda row: str(row["answer"])
    ),
    "amc23": PublicSet("math-ai/amc23", "test", "question", lambda row: str(row["answer"])),
    "aime24": PublicSet(
        "HuggingFaceH4/aime_2024", "train", "problem", lambda row: str(row["answer"])
    ),
}
"""Public data sets by name."""


def read_jsonl(file: Path, count: int) -> list[Problem]:
    """The first ``count`` problems of a JSONL file.

    Raises:
        ProblemError: the file holds fewer, or a line is no problem.
    """
    try:
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"cannot read problems from {file}: {error}") from None
    if len(lines) < count:
        raise ProblemError(f"{file} holds {len(lines)} problems, and {count} were asked for")
    return [
        _from_line(line, f"{file}, line {number}", number, file.stem)
        for number, line in enumerate(lines[:count], start=1)
    ]


def read_public(name: str, count: int) -> list[Problem]:
    """The first ``count`` problems of a public data set, one of :data:`PUBLIC`.

    Raises:
        ProblemError: the data set cannot be reached from here, or holds fewer.
    """
    source = PUBLIC[name]
    instead = "name a JSONL file with the fields question and answer instead"
    try:
        from datasets import load_dataset
    except ModuleNotFoundError:
        raise ProblemError(
            f"{name} is read with the package datasets: pip install 'growpage[bench]', or {instead}"
        ) from None
    try:
        rows = list(
            islice(load_dataset(source.path, source.configuration, split=source.split), count)
        )
    except Exception as error:  # whatever a hub, a proxy or a cache raises
        raise ProblemError(
            f"{name} ({source.path}) cannot be reached from this machine "
            f"({type(error).__name__}): {instead}"
        ) from error
    if len(rows) < count:
        raise ProblemError(f"{name} holds {len(rows)} problems, and {count} were asked for")
    return [
        maths_problem(f"{name}-{index}", row[source.question], source.answer(row), name)
        for index, row in enumerate(rows)
    ]


def maths_problem(id: str, question: str, answer: str, family: str) -> Problem:
    """A problem of mathematics, with the instruction to box the answer."""
    return Problem(id=id, question=f"{question}\n{MATHS_INSTRUCTION}", answer=answer, family=family)


def require_unique(problems: Sequence[Problem]) -> None:
    """Refuse two problems of one name.

    Raises:
        ProblemError: two problems have the same id.
    """
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise ProblemError(f"two problems have the id {problem.id!r}: give them other ids")
        seen.add(problem.id)


def _from_line(line: str, where: str, number: int, family: str) -> Problem:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ProblemError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ProblemError(f"{where} must be an object with the fields question and answer")
    try:
        problem = Problem.model_validate(
            {"id": f"{family}-{number - 1}", "family": family, **row}
            | {key: str(row[key]) for key in ("id", "answer") if key in row}
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ProblemError(f"{where}: {field}: {first['msg']}") from None
    if problem.grading == "maths":
        return problem.model_copy(update={"question": f"{problem.question}\n{MATHS_INSTRUCTION}"})
    return problem

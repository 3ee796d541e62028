"""The prompts that answers are generated for: any JSONL of questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from growpage.budget.errors import ConfigError, first_problem


class Question(Protocol):
    """What is asked of a model; anything with these fields will do."""

    @property
    def id(self) -> str:
        """Its name, unlike that of any other."""

    @property
    def question(self) -> str:
        """The user's message."""

    @property
    def family(self) -> str | None:
        """The kind that it is reported under, if any."""


class Prompt(BaseModel):
    """One line of a file of questions; other fields, such as an answer, are ignored."""

    model_config = ConfigDict(
        frozen=True, coerce_numbers_to_str=True, use_attribute_docstrings=True
    )

    id: str
    """Its name. Default: its line."""
    question: str
    family: str | None = None


def read_prompts(file: Path, count: int) -> list[Prompt]:
    """The first ``count`` questions of a JSONL file.

    Raises:
        ConfigError: the file cannot be read, holds fewer, or a line is not a question.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ConfigError(f"cannot read the questions in {file}: {reason}") from None
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip()][:count]
    if len(rows) < count:
        raise ConfigError(
            f"{file} has {len(rows)} questions, but {count} requests are asked for: give "
            f"--requests {len(rows)}"
            if rows
            else f"{file} has no questions; it must hold a JSON object with a 'question' a line"
        )
    return [_prompt(file, number, line) for number, line in rows]


def _prompt(file: Path, number: int, line: str) -> Prompt:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise ConfigError(f"{file}, line {number} is no JSON object: {line[:60]!r}")
    try:
        return Prompt.model_validate({"id": f"line-{number}", **row})
    except ValidationError as error:
        raise ConfigError(f"{file}, line {number}: {first_problem(error)}") from None


def tokenize(model: Path, questions: Sequence[Question]) -> dict[str, list[int]]:
    """Token ids by the questions' ids, in the model's chat format if it has one.

    Raises:
        ConfigError: two questions have the same id, or the model has no tokenizer.
    """
    from transformers import AutoTokenizer

    prompts: dict[str, list[int]] = {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model} has no tokenizer that can be loaded: {error}") from None
    for each in questions:
        if each.id in prompts:
            raise ConfigError(f"two questions have the id {each.id!r}: give them different ones")
        prompts[each.id] = (
            tokenizer.apply_chat_template(
                [{"role": "user", "content": each.question}],
                add_generation_prompt=True,
                return_dict=False,
            )
            if tokenizer.chat_template
            else tokenizer.encode(each.question)
        )
    return prompts

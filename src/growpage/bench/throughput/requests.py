"""Where a load's requests come from: drawn from a seed, or read from a file.

Prompts are texts, so that a server, an engine in this process and ``vllm bench serve`` all get the
same; their lengths are what the tokenizer makes of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from growpage.bench.throughput.load import Lengths, LoadRequest
from growpage.bench.workload import FAMILIES
from growpage.budget.errors import ConfigError


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is needed."""

    def __call__(self, text: str) -> Any:
        """``input_ids`` of a text, special tokens included, as vLLM's server makes them."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of tokens."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a folder.

    Raises:
        ConfigError: there is none.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{folder} has no tokenizer; name a folder that has with --tokenizer ({reason})"
        ) from None
    return tokenizer


def draw_requests(
    tokenizer: Tokenizer, count: int, prompt: Lengths, output: Lengths, seed: int
) -> list[LoadRequest]:
    """Requests of unequal lengths; the same seed gives the same.

    Prompts are sentences of the demo's workload in random order. A prompt cut in the middle of a
    word may differ from the drawn length by a token or two; its own length is what counts.

    Args:
        tokenizer: the model's.
        count: how many.
        prompt: lengths of prompts.
        output: lengths of answers.
        seed: of everything that is drawn.
    """
    generator = np.random.default_rng(seed)
    prompts, outputs = prompt.draw(count, generator), output.draw(count, generator)
    return [
        _request(f"{index:04}", _text(tokenizer, length, generator), tokens, tokenizer)
        for index, (length, tokens) in enumerate(zip(prompts, outputs, strict=True))
    ]


def read_requests(
    tokenizer: Tokenizer, file: Path, count: int | None, output: Lengths, seed: int
) -> list[LoadRequest]:
    """Requests of a file with one JSON object a line: ``prompt`` or ``question``, ``max_tokens``.

    Args:
        tokenizer: the model's.
        file: in UTF-8.
        count: the first so many; all without.
        output: lengths of answers where a line has no ``max_tokens``.
        seed: of these lengths.

    Raises:
        ConfigError: the file cannot be read, holds fewer, or a line is wrong.
    """
    try:
        rows = list(_rows(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the requests in {file}: {error}") from None
    if not rows or (count is not None and count > len(rows)):
        asked = f", and {count} were asked for" if count is not None else ""
        raise ConfigError(f"{file} holds {len(rows)} requests{asked}")
    drawn = output.draw(len(rows), np.random.default_rng(seed))
    return [
        _request(f"{index:04}", row["prompt"], row.get("max_tokens", tokens), tokenizer)
        for index, (row, tokens) in enumerate(zip(rows[:count], drawn[:count], strict=True))
    ]


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
    """Lines as ``prompt`` and perhaps ``max_tokens``."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{file}, line {number}, is no JSON: {error}") from None
        text = row.get("prompt", row.get("question")) if isinstance(row, dict) else None
        if not isinstance(text, str) or not text:
            raise ConfigError(f"{file}, line {number}, has no text as 'prompt' or 'question'")
        tokens = row.get("max_tokens")
        if tokens is not None and (type(tokens) is not int or tokens < 1):
            raise ConfigError(
                f"{file}, line {number}: max_tokens is {tokens!r}, but must be an integer, at "
                "least 1"
            )
        yield {"prompt": text} | ({} if tokens is None else {"max_tokens": tokens})


def _request(name: str, text: str, output_tokens: int, tokenizer: Tokenizer) -> LoadRequest:
    return LoadRequest(
        id=name,
        prompt=text,
        prompt_token_ids=list(tokenizer(text).input_ids),
        output_tokens=output_tokens,
    )


def _text(tokenizer: Tokenizer, tokens: int, generator: np.random.Generator) -> str:
    """Sentences in random order, cut to so many tokens."""
    text = ""
    while len(ids := tokenizer(text).input_ids) < tokens:
        text += str(generator.choice(_SENTENCES)) + " "
    return tokenizer.decode(ids[:tokens], skip_special_tokens=True)


_SENTENCES = [
    sentence
    for prompts in FAMILIES.values()
    for prompt in prompts
    for sentence in re.split(r"(?<=[.?!]) ", prompt)
]

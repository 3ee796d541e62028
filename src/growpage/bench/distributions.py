"""Whole next-token distributions of a reference, on disk, so that no part of them is guessed.

A request has one file: the model's logits at each position, in the model's own number format, in
which they are exact. It is mapped into memory; the disk holds no more than what was written.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field

from growpage.bench.pool import DTYPE_BYTES, Dtype, served_dtype


class LogitsFile(BaseModel):
    """Where one request's logits are."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str
    positions: int = Field(ge=1)
    vocabulary: int = Field(ge=1)
    """Numbers at each position."""
    dtype: str
    """bfloat16, float16 or float32."""

    @property
    def bytes(self) -> int:
        """Its size when every position is written."""
        return self.positions * self.vocabulary * DTYPE_BYTES[self.dtype]

    def open(self) -> torch.Tensor:
        """The logits, [positions, vocabulary]; what is written to them is written to the file."""
        size = self.positions * self.vocabulary
        dtype: torch.dtype = getattr(torch, self.dtype)
        flat = torch.from_file(self.path, shared=True, size=size, dtype=dtype)
        return flat.view(self.positions, self.vocabulary)


def logits_files(
    model: Path, folder: Path, requests: int, positions: int, dtype: Dtype = "auto"
) -> list[LogitsFile]:
    """The files of so many requests of a model served in ``dtype``, none of them opened.

    Raises:
        ValueError: the model's ``config.json`` does not say what its distributions are like.
    """
    file = model / "config.json"
    try:
        config = json.loads(file.read_text())
        vocabulary, served = config["vocab_size"], served_dtype(config, dtype)
        return [
            LogitsFile(
                path=str(folder / f"{index}.logits"),
                positions=positions,
                vocabulary=vocabulary,
                dtype=served,
            )
            for index in range(requests)
        ]
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"cannot tell the size of the vocabulary from {file}: {error}") from error

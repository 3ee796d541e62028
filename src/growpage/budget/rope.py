"""Rotary position embedding, forward and back.

An attention backend sees queries after RoPE. RoPE is a rotation, so a query summary is built from
queries rotated back by their position, and is rotated forward to the position it is used at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotary:
    """A layer's rotation table.

    Attributes:
        cos_sin: ``[positions, rotary_dim]``: cosines, then sines, of ``rotary_dim / 2`` angles,
            as vLLM's ``RotaryEmbedding.cos_sin_cache``. A scaled table (YaRN) is allowed.
        neox: pairs are (i, i + rotary_dim/2) if true, (2i, 2i + 1) if false.
    """

    cos_sin: Tensor
    neox: bool = True

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate ``x [..., dim]`` forward; ``positions`` broadcasts against the leading axes."""
        cos, sin = self._angles(positions)
        return self._turn(x, cos, sin)

    def unrotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Undo :meth:`rotate`, the table's scale included."""
        cos, sin = self.inverse(positions)
        return self._turn(x, cos, -sin)

    def inverse(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[..., rotary_dim / 2]`` of the angles that :meth:`unrotate` turns
        back by, over the table's scale."""
        cos, sin = self._angles(positions)
        scale = cos.square() + sin.square()
        return cos / scale, sin / scale

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos_sin[positions].float().chunk(2, dim=-1)
        return cos, sin

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        dim = 2 * cos.shape[-1]
        turned, rest = x[..., :dim].float(), x[..., dim:]
        if self.neox:
            first, second = turned.chunk(2, dim=-1)
        else:
            first, second = turned[..., 0::2], turned[..., 1::2]
        pair = (first * cos - second * sin, second * cos + first * sin)
        out = torch.cat(pair, dim=-1) if self.neox else torch.stack(pair, dim=-1).flatten(-2)
        return torch.cat((out, rest.float()), dim=-1) if rest.shape[-1] else out

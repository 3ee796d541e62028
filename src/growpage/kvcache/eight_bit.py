"""8-bit pages: what their bytes stand for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class EightBitFloats:
    """Numbers stored as 8-bit floats: a byte, read as ``dtype``, times the scale of its layer.

    Args:
        dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
        key_scales: one for each layer.
        value_scales: one for each layer.
    """

    def __init__(
        self, dtype: torch.dtype, key_scales: Sequence[float], value_scales: Sequence[float]
    ) -> None:
        self.dtype = dtype
        self.scales = torch.tensor([list(key_scales), list(value_scales)])
        """``[2, layers]``: of keys, then of values."""

    @property
    def magnitudes(self) -> Tensor:
        """``[128]`` what the bytes without their highest bit, the sign, stand for, unscaled.

        In bfloat16, which has every 8-bit float.
        """
        return torch.arange(128, dtype=torch.uint8).view(self.dtype).bfloat16()

    def decode(self, layers: slice, half: int, stored: Tensor) -> Tensor:
        """The numbers, in float32, of bytes ``[layers, ...]``; ``half`` is 0 for keys, else 1."""
        scales = self.scales[half, layers].to(stored.device)
        return stored.view(self.dtype).float() * scales.view(-1, *(1,) * (stored.dim() - 1))


def round_to_eight_bits(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers of 8-bit float ``dtype`` that lie nearest to ``numbers``, in their own dtype.

    vLLM's CPU kernels cut the bits off that an 8-bit float has no room for. That doubles the error
    of rounding and makes every number smaller; what has been rounded before they store exactly.
    """
    most = torch.finfo(dtype).max
    return numbers.clamp(-most, most).to(dtype).to(numbers.dtype)

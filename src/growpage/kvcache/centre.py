"""The centre of a model's keys, which an 8-bit cache stores them relative to.

Attention does not change when one vector is subtracted from all keys of a head: every logit of a
query moves by the same amount, and softmax does not see it. What is left to store is small, so that
an 8-bit float resolves it.
"""

from __future__ import annotations

from torch import Tensor


class KeyCentre:
    """What one layer subtracts from every key it stores: set once, before the first of them."""

    def __init__(self) -> None:
        self._vector: Tensor | None = None
        self._used = False

    @property
    def vector(self) -> Tensor | None:
        """``[kv_heads, dim]``; none until it is known."""
        return self._vector

    def set(self, vector: Tensor) -> None:
        """Store all keys relative to ``vector [kv_heads, dim]``, in the dtype of the keys.

        Raises:
            RuntimeError: keys have been stored relative to another one.
        """
        if self._used:
            raise RuntimeError("the centre of the keys cannot change once keys are stored")
        self._vector = vector

    def subtract_from(self, keys: Tensor) -> Tensor:
        """``keys [tokens, kv_heads, dim]`` as they are to be stored.

        Raises:
            RuntimeError: the centre is not known yet.
        """
        if self._vector is None:
            raise RuntimeError("a key was to be stored before the centre of the keys was known")
        self._used = True
        return keys - self._vector


class KeyMean:
    """The mean of one layer's keys over tokens, as they pass."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._tokens = 0

    def add(self, keys: Tensor) -> None:
        """Take in ``keys [tokens, kv_heads, dim]``."""
        total = keys.double().sum(dim=0)
        self._sum = total if self._sum is None else self._sum + total
        self._tokens += len(keys)

    def read(self) -> Tensor:
        """``[kv_heads, dim]`` in float32."""
        assert self._sum is not None, "no key has passed"
        return (self._sum / self._tokens).float()

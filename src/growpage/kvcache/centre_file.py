"""A calibrated centre on the disk, so that a restart need not calibrate again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor

FORMAT = "1"
_TENSOR = "centre"


class CentreFileError(RuntimeError):
    """A stored centre cannot be used, or none can be stored; the message names file and reason."""


class CentreFile:
    """Where the centre of one model, served in one way, is kept.

    Args:
        folder: of all centres; made when the first one is written.
        identity: all that the centre depends on. The file is named by its hash and holds it.
        shape: what the centre must have: ``(layers, kv_heads, dim)``.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, str], shape: tuple[int, int, int]
    ) -> None:
        self.shape = shape
        self._identity = {**identity, "format": FORMAT}
        text = json.dumps(self._identity, sort_keys=True)
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self.path = folder / f"{name}.safetensors"

    def read(self) -> Tensor | None:
        """The stored centre in float32, or none if there is no file.

        Raises:
            CentreFileError: there is one that cannot be used.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                identity, centre = file.metadata(), file.get_tensor(_TENSOR)
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError) as error:
            raise self._error(f"cannot be read: {error}") from error
        if identity != self._identity:
            raise self._error("belongs to another model or setting")
        if tuple(centre.shape) != self.shape or centre.dtype != torch.float32:
            raise self._error(f"holds {centre.dtype} of shape {tuple(centre.shape)}")
        if not bool(torch.isfinite(centre).all()):
            raise self._error("holds numbers that are not finite")
        return centre

    def write(self, centre: Tensor) -> None:
        """Store ``centre``, so that a reader at any time finds a whole file or none.

        Raises:
            CentreFileError: the operating system does not let us.
        """
        from safetensors.torch import save

        content = save({_TENSOR: centre.float().contiguous().cpu()}, metadata=self._identity)
        draft: Path | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self.path.parent, prefix=".draft-", delete=False) as file:
                draft = Path(file.name)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
        except OSError as error:
            if draft is not None:
                draft.unlink(missing_ok=True)
            raise self._error(f"cannot be written: {error.strerror or error}") from error

    def _error(self, reason: str) -> CentreFileError:
        return CentreFileError(f"the stored centre {self.path} {reason}")

"""The backend's compiler, which is never called."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from triton.backends.compiler import BaseBackend, GPUTarget


class CPUBackend(BaseBackend):
    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "cpu"

    def hash(self) -> str:
        return "cpu"

    def parse_options(self, options: dict[str, Any]) -> NoReturn:
        raise NotImplementedError("set TRITON_INTERPRET=1: this backend compiles nothing")

    def add_stages(self, stages: dict[str, Any], options: object) -> None:
        self.parse_options({})

    def load_dialects(self, context: Any) -> None:
        self.parse_options({})

    def get_module_map(self) -> dict[str, ModuleType]:
        return {}

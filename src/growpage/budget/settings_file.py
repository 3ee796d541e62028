"""Reading settings from a YAML or JSON file, strictly: nothing in it is silently ignored."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from growpage.budget.errors import ConfigError


class _OnceLoader(yaml.SafeLoader):
    """YAML whose keys are given once; PyYAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        _refuse_repeated(names)
        return super().construct_mapping(node, deep)


def load_settings(path: Path) -> Any:
    """What the file holds; for JSON it must be named ``*.json``.

    Raises:
        ConfigError: it cannot be read or is not what its name says.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ConfigError(f"cannot read the configuration file {path}: {reason}") from None
    # JSON is not YAML where it is indented with tabs.
    kind = "JSON" if path.suffix.lower() == ".json" else "YAML"
    try:
        if kind == "JSON":
            return json.loads(text, object_pairs_hook=_dict_once)
        return yaml.load(text, _OnceLoader)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else None
        reason = ", ".join(filter(None, (error.context, error.problem, where)))
        raise ConfigError(f"{path} is not valid {kind}: {reason}") from None
    except Exception as error:  # PyYAML also lets out whatever its constructors raise
        raise ConfigError(f"{path} is not valid {kind}: {' '.join(str(error).split())}") from None


def _dict_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


def _refuse_repeated(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{name} is given {names.count(name)} times, but must be given once")

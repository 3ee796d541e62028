"""Folders of finished parts, from which a stopped measurement goes on."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from growpage.budget.errors import ConfigError


def claim(file: Path, wanted: BaseModel) -> None:
    """Keep in ``file`` what parts beside it are made with, and refuse to go on with anything else.

    Raises:
        ConfigError: it holds something else, or nothing of the kind.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        file.write_text(wanted.model_dump_json(indent=2) + "\n")
        return
    try:
        kept = type(wanted).model_validate_json(file.read_text())
    except ValidationError:
        raise ConfigError(
            f"{file} is not what growpage has written there: give another work folder (--work)"
        ) from None
    for name in type(wanted).model_fields:
        ours, theirs = getattr(wanted, name), getattr(kept, name)
        if ours != theirs:
            raise ConfigError(
                f"{file} is of another measurement, whose {name} is {theirs} and not {ours}; give "
                "another work folder (--work), or the same arguments as then"
            )

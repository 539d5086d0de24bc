"""JSON and TOML of users: whatever is wrong with a text is a ``ValueError``, never the end of the stack."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from xmem.errors import ConfigError

_TOO_DEEP = "values are nested too deep"


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text.

    Raises:
        ValueError: It is not JSON, not UTF-8, nested too deep for Python's parser, or holds a number of more
            than 4,300 digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML text.

    Raises:
        ValueError: It is not TOML, nested too deep, or holds a number of more than 4,300 digits.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: It cannot be read, or is not TOML; the message names it.
    """
    try:
        return parse_toml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"{os.fspath(path)} is not valid TOML ({error})") from None

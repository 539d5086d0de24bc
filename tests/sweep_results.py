"""Results of sweeps, as tests compare them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows_of(output: Path) -> list[dict[str, Any]]:
    """Rows of JSON lines without their seconds, which are never the same twice."""
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]

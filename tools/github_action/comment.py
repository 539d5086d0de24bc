"""Write a pull request's comment: HEAD.json BASE.json, both of `check --json`; BASE may be missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from xmem.text.units import format_bytes

_UNKNOWN = -1


def comment(head: dict[str, Any], base: dict[str, Any]) -> str:
    """Return the table of peaks as Markdown."""
    before = {_key(check): check["bytes"] for check in base.get("checks", [])}
    lines = ["### GPU memory", "", "| job | GPU | base | here | change | |", "|---|---|--:|--:|--:|---|"]
    for check in head["checks"]:
        then, now = before.get(_key(check), _UNKNOWN), check["bytes"]
        mark = "passed" if check["passed"] else "**failed**"
        cells = [
            _cell(check["name"]),
            _cell(check["gpu"] or ""),
            _size(then),
            _size(now),
            _change(then, now),
            mark,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for check in head["checks"]:
        lines += [
            "",
            *(f"- {_cell(check['name'])}: {_cell(found['message'])}" for found in check["findings"]),
        ]
    return "\n".join(lines).rstrip() + "\n"


def _key(check: dict[str, Any]) -> tuple[str, str | None]:
    return check["name"], check["gpu"]


def _size(count: int) -> str:
    return "" if count == _UNKNOWN else format_bytes(count)


def _change(before: int, now: int) -> str:
    if _UNKNOWN in (before, now):
        return ""
    if before == now:
        return "none"
    sign = "+" if now > before else "-"
    return f"{sign}{format_bytes(abs(now - before))} ({100 * (now - before) / max(before, 1):+.1f}%)"


def _cell(text: str) -> str:
    for character in "\\`*_<>[]|":
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", " ")


if __name__ == "__main__":
    read = [json.loads(Path(name).read_text()) if Path(name).is_file() else {} for name in sys.argv[1:3]]
    print(comment(*read), end="")

"""One module for each project that publishes figures. Each has

``NAME``
    what the command line calls it,
``rows(data)``
    its published figures, read from a folder of files,
``run(row, laboratory)``
    our answers to all rows of that row's job.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from scoreboard.answers import Answers
from scoreboard.laboratory import Laboratory
from scoreboard.projects import fakegpu, liger, megatron, modded_nanogpt, peft, timm, torchtitan
from scoreboard.rows import Row


class Project(Protocol):
    """What a module of this folder has."""

    NAME: str

    def rows(self, data: Path) -> Iterator[Row]: ...

    def run(self, row: Row, laboratory: Laboratory) -> Answers: ...


PROJECTS: dict[str, Project] = {
    module.NAME: module for module in (fakegpu, liger, megatron, modded_nanogpt, peft, timm, torchtitan)
}

"""The table of stacks: what each row of ``stacks.toml`` says."""

from __future__ import annotations

import fnmatch
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
ENVIRONMENTS = HERE / "environments"


@dataclass(frozen=True)
class Row:
    """One stack, as a user would start it."""

    name: str
    """Names files and tests: short, with hyphens."""
    title: str
    group: str
    environment: str
    """Names a file of ``environments``; empty where ``make test-stacks`` cannot install the stack."""
    packages: tuple[str, ...]
    """Distributions whose versions the page shows, the stack's own first."""
    command: tuple[str, ...] = ()
    """What follows ``--``. ``SCRIPTS`` is the folder of the scripts, ``BIN`` that of the environment."""
    prepare: tuple[str, ...] = ()
    """What is run before, without xMem: writes a model or a data set into the row's folder."""
    gpu: str = "h100"
    gpus: int = 1
    options: tuple[str, ...] = ()
    """Other options of ``xmem-fast run``."""
    variables: tuple[tuple[str, str], ...] = ()
    """Of the script's environment."""
    limit_s: float = 240
    host_gib: float = 10
    """The row is ended when all its processes together take more of the host."""
    refused: str = ""
    """What the message has to say where a refusal is expected; empty where the row is expected to work."""
    note: str = ""
    """For the page: what a user has to know, or why it cannot work and the way out."""

    @property
    def expected(self) -> str:
        """What the page promises: ``works``, ``refused`` or ``not installed``."""
        if not self.environment:
            return "not installed"
        return "refused" if self.refused else "works"


def all_rows() -> list[Row]:
    """Every row, in the order of the page."""
    with (HERE / "stacks.toml").open("rb") as file:
        tables = tomllib.load(file)["stack"]
    rows = [_row(table) for table in tables]
    names = [row.name for row in rows]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"stacks.toml: more than one row is called {', '.join(sorted(twice))}")
    return rows


def selected_rows(pattern: str) -> list[Row]:
    """The rows that can run and have the pattern in name, group or environment; commas part patterns."""
    wanted = [f"*{part.strip().lower()}*" for part in pattern.split(",")]
    return [
        row
        for row in all_rows()
        if row.environment
        and any(
            fnmatch.fnmatch(text.lower(), part)
            for part in wanted
            for text in (row.name, row.group, row.environment)
        )
    ]


def _row(table: dict[str, object]) -> Row:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    values["variables"] = tuple(values.get("variables", {}).items())  # type: ignore[union-attr]
    return Row(**values)  # type: ignore[arg-type]

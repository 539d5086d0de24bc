"""What is known of single rows of a scorecard, and how its pages write dates and shares."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from pathlib import Path

from xmem.errors import ConfigError
from xmem.files.documents import parse_toml
from xmem.records import dataclass
from xmem.validation.metrics import Judged

_FIELDS = ("model", "optimizer", "batch_size", "gpu", "way")


@dataclass(frozen=True)
class Explanation:
    """Why rows are as they are.

    Attributes:
        matches: What a row must have to be meant, by the names of ``_FIELDS``.
        text: The evidence.
    """

    matches: dict[str, str]
    text: str

    def is_of(self, row: Judged) -> bool:
        """Whether a row is meant; a model's name may be given without its owner."""
        cells = {
            "model": row.run.model.rpartition("/")[2],
            "optimizer": row.run.optimizer,
            "batch_size": str(row.run.batch),
            "gpu": row.run.gpu,
            "way": row.estimate.way,
        }
        return all(
            value in cells[name] if name == "gpu" else value.rpartition("/")[2] == cells[name]
            for name, value in self.matches.items()
        )


def read_explanations(path: Path) -> tuple[Explanation, ...]:
    """Explanations from a file: tables ``[[explanation]]`` of a text and what a row must have.

    Raises:
        ConfigError: The file cannot be read, or has something else in it.
    """
    try:
        tables = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the explanations {path} cannot be read ({error})", "write them as a TOML file"
        ) from error
    found = []
    for number, table in enumerate(tables.get("explanation", ()), 1):
        matches = {name: str(value) for name, value in table.items() if name != "text"}
        if not isinstance(table.get("text"), str) or not matches or set(matches) - set(_FIELDS):
            raise ConfigError(
                f"{path}: explanation {number} is invalid",
                f"give it a text, and some of {', '.join(_FIELDS)} to choose rows by",
            )
        found.append(Explanation(matches, " ".join(table["text"].split())))
    return tuple(found)


def explain(row: Judged, explanations: Iterable[Explanation]) -> str:
    """What is known of a row: its own note, then every explanation of it."""
    return "; ".join(
        [*filter(None, [row.estimate.note]), *(known.text for known in explanations if known.is_of(row))]
    )


def today() -> datetime.date:
    """The date that a page is of."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch:
        return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date()
    return datetime.datetime.now(datetime.UTC).date()


def percent(share: float | None, *, signed: bool = False) -> str:
    """A share as text, empty for None."""
    if share is None:
        return ""
    return f"{share:+.2%}" if signed else f"{share:.2%}"

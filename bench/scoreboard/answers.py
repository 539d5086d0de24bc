"""Our figures for the rows of a job, kept on disk, so that a run that was cut short goes on."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from xmem.errors import TraceError


@dataclass(frozen=True)
class Answers:
    """What a job gave on the phantom GPU.

    Attributes:
        figures: Ours by item, in bytes or samples.
        problems: What went wrong, by item.
        problem: What went wrong with the whole job; empty if it ran.
        torch: The release that ran.
        seconds: How long it took.
        version: Digest of the sources that decide what comes out.
    """

    figures: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    torch: str = ""
    seconds: float = 0.0
    version: str = ""


@dataclass(frozen=True)
class AnswerFolder:
    """Where answers lie, one file a job.

    Attributes:
        folder: Made when something is put there.
        version: Answers of other versions are not found, unless ``stale``.
        stale: Whether answers of any version will do.
    """

    folder: Path
    version: str
    stale: bool = False

    def find(self, project: str, job: str) -> Answers | None:
        """The answers of a job.

        Raises:
            TraceError: The file is damaged.
        """
        path = self._path(project, job)
        if not path.exists():
            return None
        try:
            answers = Answers(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise TraceError(f"is not an answer ({error}); delete it and run again", str(path)) from error
        return answers if self.stale or answers.version == self.version else None

    def put(self, project: str, job: str, answers: Answers) -> None:
        """Keep the answers of a job."""
        path = self._path(project, job)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(answers), indent=1) + "\n")
        partial.replace(path)

    def _path(self, project: str, job: str) -> Path:
        return self.folder / project / f"{re.sub('[^A-Za-z0-9.+_-]', '_', job)}.json"
